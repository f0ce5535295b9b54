package main

import "time"

// policeEvery is how often the ports are looked at for what makes no event, such
// as other people's programs and rules. With the time that a look takes, a change
// is in force within a second.
const policeEvery = 800 * time.Millisecond

// policeSoon is when they are looked at again after a port has appeared, and then
// after twice that time, and so on up to policeEvery: libvirt makes rules and limits
// for a tap some milliseconds after it has put the tap on its bridge.
const policeSoon = 50 * time.Millisecond

// rounds say when to look at the ports for what makes no event.
type rounds struct {
	timer *time.Timer
	wait  time.Duration
}

func newRounds() *rounds { return &rounds{time.NewTimer(policeSoon), policeSoon} }

// soon begins anew with short waits.
func (r *rounds) soon() {
	r.wait = policeSoon
	r.timer.Reset(r.wait)
}

// next waits for the next look.
func (r *rounds) next() {
	r.wait = min(2*r.wait, policeEvery)
	r.timer.Reset(r.wait)
}
