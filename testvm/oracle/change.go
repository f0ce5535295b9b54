package oracle

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A changeKind is a kind of change.
type changeKind struct {
	name string
	// weight is how often it is made between two batches of frames, and make how. It
	// gives none if that can't be just now.
	weight int
	make   func(*generator) *change
	// apply makes the change, unless it can't be: a case that has lost steps may ask
	// for a port to be plugged in that is there. moves says that it takes frames from
	// where they went before, so that the datapath must be waited for.
	apply func(p *pair, ctx context.Context, c *change) (done, moves bool, err error)
}

// changes are what may happen to both hosts.
var changes = slices.Concat(portChanges, vlanChanges, controls)

var portChanges = []changeKind{
	{"static entry", 4, (*generator).static, (*pair).makeStatic},
	{"delete entry", 4, (*generator).deletion, (*pair).deleteEntry},
	{"flush learned entries", 1, plainly, (*pair).flush},
	{"switch port", 3, (*generator).switching, (*pair).switchPort},
	{"unplug port", 2, (*generator).unplugging, (*pair).unplugPort},
	{"plug port in", 4, (*generator).plugging, (*pair).plugPort},
	{"port setting", 5, (*generator).portSetting, (*pair).changeSetting},
	{"MTU", 2, (*generator).mtu, (*pair).changeMTU},
}

// plainly makes a change of which nothing more is to be said.
func plainly(*generator) *change { return &change{Port: theBridge} }

// change makes a random change, or none.
func (g *generator) change() *change {
	possible := portChanges
	if g.network.bridging != nil {
		possible = slices.Concat(portChanges, vlanChanges)
	}
	all := 0
	for i := range possible {
		all += possible[i].weight
	}
	at := g.IntN(all)
	for i := range possible {
		if at -= possible[i].weight; at >= 0 {
			continue
		}
		c := possible[i].make(g)
		if c != nil {
			c.Do = possible[i].name
		}
		return c
	}
	return nil
}

// change applies a change to both hosts.
func (p *pair) change(ctx context.Context, c *change) error {
	at := slices.IndexFunc(changes, func(k changeKind) bool { return k.name == c.Do })
	if at < 0 {
		return fmt.Errorf("there is no change %q", c.Do)
	}
	// Without the daemon, the fast path can follow none.
	if p.away != "" && changes[at].weight > 0 {
		return nil
	}
	if err := p.seeUplink(); err != nil {
		return err
	}
	done, moves, err := changes[at].apply(p, ctx, c)
	if err != nil {
		return fmt.Errorf("making a change (%s): %w", c, err)
	}
	if done && changes[at].weight > 0 {
		p.report.Changes[c.Do]++
	}
	p.unsettled = p.unsettled || moves
	return nil
}

// both does something to each host.
func (p *pair) both(f func(*host) error) error {
	return errors.Join(f(p.plain), f(p.fast.host))
}

// there says whether a change's port is.
func (p *pair) there(c *change) bool { return c.Port != theBridge && p.net.ports[c.Port].there }

// key is the place in the bridges' tables that a change is about; ok is false if its
// port can't have that.
func (p *pair) key(c *change) (key fdbKey, ok bool) {
	if !p.there(c) || c.MAC == nil {
		return fdbKey{}, false
	}
	key = p.net.key(*c.MAC, c.VLAN)
	aware := p.net.bridging != nil && p.net.bridging.aware
	return key, !aware || c.VLAN != 0 && p.net.bridging.ports[int(c.Port)].has(c.VLAN)
}

func (g *generator) static() *change {
	port, ok := g.somePort()
	if !ok {
		return nil
	}
	s := g.speaker(func(*station) bool { return true })
	if s == nil || g.chance(30) {
		s = &station{mac: g.randomMAC()}
		g.add(s)
	}
	if g.network.bridging != nil {
		s.vlan = g.member(port)
	}
	s.port = port
	return &change{Port: portNumber(port), MAC: &s.mac, VLAN: s.vlan}
}

func (p *pair) makeStatic(_ context.Context, c *change) (done, moves bool, err error) {
	key, ok := p.key(c)
	if !ok {
		return false, false, nil
	}
	before, known := p.net.learned[key]
	p.net.learned[key] = int(c.Port)
	return true, known && before != int(c.Port), p.both(func(h *host) error { return h.setStatic(key.mac, int(c.Port), key.vlan) })
}

func (g *generator) deletion() *change {
	s := g.speaker(func(s *station) bool { return g.network.ports[s.port].there })
	if s == nil {
		return nil
	}
	return &change{Port: portNumber(s.port), MAC: &s.mac, VLAN: s.vlan}
}

func (p *pair) deleteEntry(_ context.Context, c *change) (done, moves bool, err error) {
	key, ok := p.key(c)
	if !ok {
		return false, false, nil
	}
	if p.net.learned[key] == int(c.Port) {
		delete(p.net.learned, key)
	}
	return true, true, p.both(func(h *host) error { return h.deleteEntry(key.mac, int(c.Port), key.vlan) })
}

func (p *pair) flush(context.Context, *change) (done, moves bool, err error) {
	return true, true, p.both((*host).flush)
}

// somePresent gives a port that is there, often one that is not as it was made.
func (g *generator) somePresent(changed func(number int) bool) (number int, ok bool) {
	var found []int
	for i := range g.network.ports {
		if g.network.ports[i].there && changed(i) {
			found = append(found, i)
		}
	}
	if len(found) > 0 && g.chance(60*len(found)) {
		return one(g, found), true
	}
	number = g.IntN(len(specs))
	return number, g.network.ports[number].there
}

func never(int) bool { return false }

func (g *generator) switching() *change {
	i, ok := g.somePresent(func(i int) bool { return !g.network.ports[i].up })
	if !ok {
		return nil
	}
	return &change{Port: portNumber(i), On: !g.network.ports[i].up}
}

func (p *pair) switchPort(_ context.Context, c *change) (done, moves bool, err error) {
	if !p.there(c) || p.net.ports[c.Port].up == c.On {
		return false, false, nil
	}
	p.net.ports[c.Port].up = c.On // static entries stay
	return true, !c.On, p.both(func(h *host) error { return h.setUp(int(c.Port), c.On) })
}

func (g *generator) unplugging() *change {
	i, ok := g.somePresent(never)
	if !ok || i == uplink {
		return nil
	}
	return &change{Port: portNumber(i)}
}

func (p *pair) unplugPort(ctx context.Context, c *change) (done, moves bool, err error) {
	i := int(c.Port)
	if !p.there(c) || i == uplink {
		return false, false, nil
	}
	if !p.uncounted[i] {
		if err := p.fast.endCount(ctx, i); err != nil {
			return false, false, p.difference([]string{err.Error()})
		}
	}
	delete(p.uncounted, i)
	p.net.ports[i] = portState{}
	p.net.forget(i)
	err = p.both(func(h *host) error { return h.unplug(ctx, i) })
	if err == nil {
		err = p.followVLANs()
	}
	return true, true, err
}

func (g *generator) plugging() *change {
	var gone []int
	for i := range g.network.ports {
		if !g.network.ports[i].there {
			gone = append(gone, i)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return &change{Port: portNumber(one(g, gone)), VLANs: g.randomVLANs()}
}

func (p *pair) plugPort(_ context.Context, c *change) (done, moves bool, err error) {
	i := int(c.Port)
	if c.Port == theBridge || p.net.ports[i].there {
		return false, false, nil
	}
	p.net.ports[i] = p.net.newPort(i)
	p.uncounted[i] = true
	// Its own address may have been learned elsewhere meanwhile.
	for key := range p.net.learned {
		if key.mac == portMAC(i) {
			moves = true
			delete(p.net.learned, key)
		}
	}
	var vlans []vlanRange
	if p.net.bridging != nil {
		vlans = c.VLANs
	}
	err = p.both(func(h *host) error { return h.plug(i, vlans...) })
	if err == nil {
		err = p.followVLANs()
	}
	return true, moves, err
}

func (g *generator) portSetting() *change {
	f := setting(g.IntN(int(settings)))
	i, ok := g.somePresent(func(i int) bool { return g.network.ports[i].set[f] != f.byDefault() })
	if !ok {
		return nil
	}
	return &change{Port: portNumber(i), Setting: &f, On: !g.network.ports[i].set[f]}
}

func (p *pair) changeSetting(_ context.Context, c *change) (done, moves bool, err error) {
	if !p.there(c) || c.Setting == nil {
		return false, false, nil
	}
	p.net.ports[c.Port].set[*c.Setting] = c.On
	err = p.both(func(h *host) error { return h.setSetting(int(c.Port), *c.Setting, c.On) })
	return true, *c.Setting == isolated && c.On, err
}

func (g *generator) mtu() *change {
	n := g.network
	i, ok := g.somePresent(func(i int) bool { return n.ports[i].mtu != n.mtus[i] })
	if !ok {
		return nil
	}
	mtu := n.mtus[i]
	if n.ports[i].mtu == mtu {
		others := []int{1280, 1500, 2000, 9000}
		if i == uplink { // of those with which it keeps its hook
			others = slices.DeleteFunc(others, func(n int) bool { return (n > vethXDP) != (mtu > vethXDP) })
		}
		mtu = one(g, others)
	}
	return &change{Port: portNumber(i), MTU: mtu}
}

func (p *pair) changeMTU(_ context.Context, c *change) (done, moves bool, err error) {
	if !p.there(c) || c.MTU == 0 {
		return false, false, nil
	}
	s := &p.net.ports[c.Port]
	shorter := c.MTU < s.mtu
	s.mtu = c.MTU
	return true, shorter, p.both(func(h *host) error { return h.setMTU(int(c.Port), c.MTU) })
}
