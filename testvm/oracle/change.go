package oracle

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A possibleChange is a kind of change.
type possibleChange struct {
	name   string
	weight int
	make   func(*pair, context.Context) (what string, moves bool, err error)
}

// changes are what may happen to both hosts between two batches of frames, how
// often, and how. A change that can't be made just now says nothing. moves says
// that it takes frames from where they went before, so that the datapath must be
// waited for.
var changes = []possibleChange{
	{"static entry", 4, (*pair).makeStatic},
	{"deleted entry", 4, (*pair).deleteEntry},
	{"flush", 1, (*pair).flush},
	{"port down or up", 3, (*pair).switchPort},
	{"port gone or there", 3, (*pair).plugPort},
	{"port setting", 5, (*pair).changeSetting},
	{"MTU", 2, (*pair).changeMTU},
}

// change makes a random change.
func (p *pair) change(ctx context.Context) error {
	possible, all := changes, 0
	if p.net.bridging != nil {
		possible = slices.Concat(changes, vlanChanges)
	}
	for _, c := range possible {
		all += c.weight
	}
	at := p.gen.IntN(all)
	for _, c := range possible {
		if at -= c.weight; at >= 0 {
			continue
		}
		what, moves, err := c.make(p, ctx)
		if err != nil {
			return fmt.Errorf("making a change (%s): %w", c.name, err)
		}
		if what == "" {
			return nil
		}
		p.report.Changes[c.name]++
		p.note(what)
		if moves || p.gen.chance(50) {
			return p.settle(ctx)
		}
		return nil
	}
	return nil
}

// both does something to each host.
func (p *pair) both(f func(*host) error) error {
	return errors.Join(f(p.plain), f(p.fast.host))
}

func (p *pair) makeStatic(context.Context) (string, bool, error) {
	port, ok := p.net.somePort(p.gen)
	if !ok {
		return "", false, nil
	}
	s := p.net.speaker(p.gen, func(*station) bool { return true })
	if s == nil || p.gen.chance(30) {
		s = &station{mac: p.gen.randomMAC()}
		p.net.add(p.gen, s)
	}
	if p.net.bridging != nil {
		s.vlan = p.gen.member(port)
	}
	key := p.net.key(s.mac, s.vlan)
	before, known := p.net.learned[key]
	s.port, p.net.learned[key] = port, port
	err := p.both(func(h *host) error { return h.setStatic(s.mac, port, key.vlan) })
	return fmt.Sprintf("static entry for %s on %s", key, specs[port].name), known && before != port, err
}

func (p *pair) deleteEntry(context.Context) (string, bool, error) {
	s := p.net.speaker(p.gen, func(s *station) bool { return p.net.ports[s.port].there })
	if s == nil {
		return "", false, nil
	}
	key := p.net.key(s.mac, s.vlan)
	if key.vlan != 0 && !p.net.bridging.ports[s.port].has(s.vlan) {
		return "", false, nil
	}
	delete(p.net.learned, key)
	err := p.both(func(h *host) error { return h.deleteEntry(s.mac, s.port, key.vlan) })
	return fmt.Sprintf("entry for %s on %s deleted", key, specs[s.port].name), true, err
}

func (p *pair) flush(context.Context) (string, bool, error) {
	return "learned entries flushed", true, p.both((*host).flush)
}

// somePort picks a port that is not as it was made, or any.
func (p *pair) somePort(changed func(number int) bool) int {
	var found []int
	for i := range specs {
		if changed(i) {
			found = append(found, i)
		}
	}
	if len(found) > 0 && p.gen.chance(60*len(found)) {
		return one(p.gen, found)
	}
	return p.gen.IntN(len(specs))
}

func (p *pair) switchPort(context.Context) (string, bool, error) {
	i := p.somePort(func(i int) bool { return p.net.ports[i].there && !p.net.ports[i].up })
	s := &p.net.ports[i]
	if !s.there {
		return "", false, nil
	}
	s.up = !s.up // static entries stay
	err := p.both(func(h *host) error { return h.setUp(i, s.up) })
	return fmt.Sprintf("%s up: %t", specs[i].name, s.up), !s.up, err
}

func (p *pair) plugPort(ctx context.Context) (string, bool, error) {
	i := p.somePort(func(i int) bool { return !p.net.ports[i].there })
	if i == uplink {
		return "", false, nil
	}
	s := &p.net.ports[i]
	if s.there {
		if !p.uncounted[i] {
			if err := p.fast.endCount(ctx, i); err != nil {
				return "", false, err
			}
		}
		delete(p.uncounted, i)
		*s = portState{}
		p.net.forget(i)
		err := p.both(func(h *host) error { return h.unplug(ctx, i) })
		if err == nil {
			err = p.followVLANs()
		}
		return specs[i].name + " unplugged", true, err
	}
	*s = p.net.newPort(i)
	p.uncounted[i] = true
	// Its own address may have been learned elsewhere meanwhile.
	moves := false
	for key := range p.net.learned {
		if key.mac == portMAC(i) {
			moves = true
			delete(p.net.learned, key)
		}
	}
	vlans := p.randomVLANs()
	err := p.both(func(h *host) error { return h.plug(i, vlans...) })
	if err == nil {
		err = p.followVLANs()
	}
	return specs[i].name + " plugged in", moves, err
}

func (p *pair) changeSetting(context.Context) (string, bool, error) {
	f := setting(p.gen.IntN(int(settings)))
	i := p.somePort(func(i int) bool { return p.net.ports[i].there && p.net.ports[i].set[f] != f.byDefault() })
	s := &p.net.ports[i]
	if !s.there {
		return "", false, nil
	}
	s.set[f] = !s.set[f]
	err := p.both(func(h *host) error { return h.setSetting(i, f, s.set[f]) })
	return fmt.Sprintf("%s of %s: %t", f, specs[i].name, s.set[f]), f == isolated && s.set[f], err
}

func (p *pair) changeMTU(context.Context) (string, bool, error) {
	i := p.somePort(func(i int) bool { return p.net.ports[i].there && p.net.ports[i].mtu != p.net.mtus[i] })
	s := &p.net.ports[i]
	if !s.there {
		return "", false, nil
	}
	mtu := p.net.mtus[i]
	if s.mtu == mtu {
		others := []int{1280, 1500, 2000, 9000}
		if i == uplink { // of those with which it keeps its hook
			others = slices.DeleteFunc(others, func(n int) bool { return (n > vethXDP) != (mtu > vethXDP) })
		}
		mtu = one(p.gen, others)
	}
	shorter := mtu < s.mtu
	s.mtu = mtu
	err := p.both(func(h *host) error { return h.setMTU(i, mtu) })
	return fmt.Sprintf("MTU of %s: %d", specs[i].name, mtu), shorter, err
}
