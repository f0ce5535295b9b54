package main

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// domains are the guests behind the ports, as far as libvirt tells. The kernel alone
// says which ports there are and what may go by them; libvirt adds names, grants
// (native XDP), and reasons to hold a port back that the kernel would tell later.
type domains struct {
	watcher *libvirt.Watcher // nil if libvirt is not to be asked
	seen    map[int]libvirt.Sighting
	guests  map[int]libvirt.Guest // by the port's ifindex
	// filterRules stands for the rules of filters on the host.
	filterRules uint64
}

// changed tells that libvirt's word may be another; it never does without libvirt.
func (d *domains) changed() <-chan struct{} {
	if d.watcher == nil {
		return nil
	}
	return d.watcher.Changed()
}

// follow takes over which guests' ports there are, and says whether one is new.
func (d *domains) follow(ports map[int]vswitch.Port) (appeared bool) {
	now := time.Now()
	before := d.seen
	d.seen = map[int]libvirt.Sighting{}
	for ifindex, p := range ports {
		if p.Role != vswitch.RoleGuest {
			continue
		}
		old, there := before[ifindex]
		if !there {
			old.Since, appeared = now, true
		}
		d.seen[ifindex] = libvirt.Sighting{Port: p, Since: old.Since}
	}
	if appeared && d.watcher != nil {
		// Its device-added event may be lost, or late by a second.
		d.watcher.Look()
	}
	return appeared
}

// rulesChanged tells that the rules of filters on the host are others than before: a
// filter may have been redefined, or an interface have got another, of which libvirt
// tells by no event.
func (d *domains) rulesChanged(number uint64) {
	if number != d.filterRules && d.watcher != nil {
		d.watcher.Look()
	}
	d.filterRules = number
}

// forget forgets a device that has gone.
func (d *domains) forget(ifindex int) {
	delete(d.seen, ifindex)
	delete(d.guests, ifindex)
}

// match finds the guests behind the ports anew, and says whether they are others.
func (d *domains) match() bool {
	if d.watcher == nil {
		return false
	}
	guests := libvirt.Match(d.watcher.State().Domains, d.seen, d.guests)
	same := maps.EqualFunc(guests, d.guests, func(a, b libvirt.Guest) bool { return reflect.DeepEqual(a, b) })
	d.guests = guests
	return !same
}

// decide adds what the guests' definitions say to an observation.
func (d *domains) decide(o *vswitch.Observation) {
	for ifindex, g := range d.guests {
		p, ok := o.Ports[ifindex]
		if !ok {
			continue
		}
		if g.Filter != nil && g.Filter.Known != nil {
			// It is checked here, so its rules on the host are no reason any more.
			o.Holds[ifindex] = slices.DeleteFunc(slices.Clone(o.Holds[ifindex]), func(r vswitch.HoldReason) bool { return r.Code == vswitch.HoldFilter })
			p.Filter = g.Filter.Known.Frames
		}
		o.Holds[ifindex] = append(o.Holds[ifindex], g.Holds()...)
		if ok, _ := g.Promotable(); ok {
			p.Promoted = true
		}
		o.Ports[ifindex] = p
	}
}

// guest gives the guest behind a port as the control API shows it.
func (d *domains) guest(ifindex int) *control.Guest {
	g, ok := d.guests[ifindex]
	if !ok {
		return nil
	}
	return &control.Guest{
		Domain: g.Domain, UUID: g.UUID, Alias: g.Alias, MAC: g.MAC, Model: g.Model, Queues: g.Queues, Paused: g.Paused,
	}
}

func (d *domains) status() control.Libvirt {
	if d.watcher == nil {
		return control.Libvirt{Portless: []control.Portless{}}
	}
	s := d.watcher.State()
	status := control.Libvirt{
		Asked: true, Connected: s.Connected, Socket: s.Socket, Since: s.Since, Domains: len(s.Domains), Guests: len(d.guests),
		Portless: []control.Portless{},
	}
	for _, p := range libvirt.FindPortless(s.Domains, d.guests) {
		status.Portless = append(status.Portless, control.Portless{Domain: p.Domain, UUID: p.UUID, Alias: p.Alias, MAC: p.MAC, Type: p.Type, Why: p.Why})
	}
	if s.Err != nil {
		status.Error = s.Err.Error()
	}
	return status
}
