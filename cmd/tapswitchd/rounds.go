package main

import (
	"maps"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/bridge"
)

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
	// looked are the subjects of the last look, by ifindex.
	looked map[int]subject
}

// A subject is all of a bridge or port that decides what a look at it finds. What else
// changes, like VLANs and flags, need not wait for a look, which takes milliseconds,
// and with hundreds of ports more than a change may.
type subject struct {
	name    string
	bridge  int // of a port
	role    vswitch.Role
	kind    string
	carrier vswitch.Carrier
}

func subjects(m *bridge.Mirror) map[int]subject {
	all := make(map[int]subject, len(m.Bridges)+len(m.Ports))
	for ifindex, br := range m.Bridges {
		all[ifindex] = subject{name: br.Name}
	}
	for ifindex, p := range m.Ports {
		all[ifindex] = subject{p.Name, p.Bridge, p.Role, p.Kind, p.Carrier}
	}
	return all
}

func newRounds() *rounds { return &rounds{timer: time.NewTimer(policeSoon), wait: policeSoon} }

// due says whether there is something that has not been looked at.
func (r *rounds) due(m *bridge.Mirror) bool { return !maps.Equal(r.looked, subjects(m)) }

// done notes that everything has been looked at.
func (r *rounds) done(m *bridge.Mirror) { r.looked = subjects(m) }

// forget forgets a device that has gone: another may get all that it was.
func (r *rounds) forget(ifindex int) { delete(r.looked, ifindex) }

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
