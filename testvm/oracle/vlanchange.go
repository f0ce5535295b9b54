package oracle

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// vlanChanges are what may happen to VLANs beside the other changes.
var vlanChanges = []possibleChange{
	{"VLAN added", 8, (*pair).addVLAN},
	{"VLAN removed", 4, (*pair).removeVLAN},
	{"PVID", 5, (*pair).changePVID},
	{"VLANs of the bridge", 2, (*pair).changeBridgeVLAN},
	{"VLAN filtering", 2, (*pair).toggleAware},
	{"VLAN protocol", 1, (*pair).changeTPID},
	{"default PVID", 2, (*pair).changeDefaultPVID},
}

// followVLANs reads the VLANs of both hosts, which must be the same.
func (p *pair) followVLANs() error {
	b := p.net.bridging
	if b == nil {
		return nil
	}
	of, err := p.plain.vlans()
	if err != nil {
		return err
	}
	fast, err := p.fast.vlans()
	if err != nil {
		return err
	}
	for i, m := range of {
		if !m.equal(fast[i]) {
			return p.difference([]string{fmt.Sprintf("the VLANs of port %d are %v on the plain host, %v on the fast one", i, m, fast[i])})
		}
	}
	b.ports = of
	return nil
}

// setVLANs changes VLANs on both hosts. Frames that went somewhere before go
// elsewhere unless the VLANs are new to the port.
func (p *pair) setVLANs(number int, r vlanRange) (what string, moves bool, err error) {
	name := "the bridge"
	if number != theBridge {
		name = specs[number].name
	}
	m := p.net.bridging.ports[number]
	moves = r.pvid || r.remove || number == theBridge
	for v := r.first; v <= r.last; v++ {
		moves = moves || m.has(v)
		// The bridge's own addresses take the places of others.
		for i := range specs {
			_, known := p.net.learned[p.net.key(portMAC(i), v)]
			moves = moves || known
		}
	}
	if err := p.both(func(h *host) error { return h.setVLANs(number, r) }); err != nil {
		return "", false, err
	}
	return fmt.Sprintf("%s: %v", name, r), moves, p.followVLANs()
}

// randomVLANs gives the VLANs that a port is made with.
func (p *pair) randomVLANs() (list []vlanRange) {
	if p.net.bridging == nil {
		return nil
	}
	list = append(list, vlanRange{first: 1, last: 1, remove: true})
	for _, v := range vlans {
		if v != management && p.gen.chance(75) {
			list = append(list, vlanRange{first: v, last: v, pvid: p.gen.chance(40), untagged: p.gen.chance(50)})
		}
	}
	if p.gen.chance(20) {
		list = append(list, p.wide())
	}
	return list
}

func (p *pair) wide() vlanRange {
	first := uint16(wideFirst + p.gen.IntN(wideLast-wideFirst))
	return vlanRange{first: first, last: first + uint16(p.gen.IntN(wideLast-int(first)+1)), untagged: p.gen.chance(50)}
}

// somePresent gives a port that is there.
func (p *pair) somePresent() (number int, ok bool) {
	number = p.gen.IntN(len(specs))
	return number, p.net.ports[number].there
}

// someVLAN gives one that is not the management's.
func (p *pair) someVLAN() uint16 {
	return one(p.gen, slices.DeleteFunc(slices.Clone(vlans), func(v uint16) bool { return v == management }))
}

func (p *pair) addVLAN(context.Context) (string, bool, error) {
	i, ok := p.somePresent()
	if !ok {
		return "", false, nil
	}
	v := p.someVLAN()
	r := vlanRange{first: v, last: v, untagged: p.gen.chance(50)}
	switch {
	case p.gen.chance(10):
		r = p.wide()
	case p.gen.chance(10):
		r.last += uint16(p.gen.IntN(20))
	}
	return p.setVLANs(i, r)
}

func (p *pair) removeVLAN(context.Context) (string, bool, error) {
	i, ok := p.somePresent()
	if !ok {
		return "", false, nil
	}
	v := p.someVLAN()
	r := vlanRange{first: v, last: v, remove: true}
	switch {
	case p.gen.chance(10):
		r = p.wide()
		r.remove, r.untagged = true, false
	case p.gen.chance(10):
		r.last += uint16(p.gen.IntN(20))
	}
	return p.setVLANs(i, r)
}

// changePVID makes another VLAN a port's PVID, or leaves it without.
func (p *pair) changePVID(context.Context) (string, bool, error) {
	i, ok := p.somePresent()
	if !ok {
		return "", false, nil
	}
	pvid := p.net.bridging.ports[i].pvid
	if pvid != 0 && p.gen.chance(20) {
		return p.setVLANs(i, vlanRange{first: pvid, last: pvid, untagged: p.gen.chance(50)})
	}
	v := p.someVLAN()
	return p.setVLANs(i, vlanRange{first: v, last: v, pvid: true, untagged: p.gen.chance(70)})
}

func (p *pair) changeBridgeVLAN(context.Context) (string, bool, error) {
	v := p.someVLAN()
	r := vlanRange{first: v, last: v, remove: p.gen.chance(30)}
	if !r.remove {
		r.pvid, r.untagged = p.gen.chance(40), p.gen.chance(50)
	}
	return p.setVLANs(theBridge, r)
}

// toggleAware switches VLAN filtering, and empties the bridges' tables: a refresh on a
// bridge that is not VLAN-aware is one in all VLANs of a port, whose entries count
// from then on.
func (p *pair) toggleAware(context.Context) (string, bool, error) {
	b := p.net.bridging
	b.aware = !b.aware
	clear(p.net.learned)
	err := p.both(func(h *host) error { return h.setAware(b.aware) })
	if err == nil {
		err = p.both((*host).purge)
	}
	return fmt.Sprintf("VLAN filtering: %t", b.aware), true, err
}

func (p *pair) changeTPID(context.Context) (string, bool, error) {
	b := p.net.bridging
	b.tpid ^= unix.ETH_P_8021Q ^ unix.ETH_P_8021AD
	err := p.both(func(h *host) error { return h.setTPID(b.tpid) })
	return fmt.Sprintf("VLAN protocol: %#x", b.tpid), true, err
}

func (p *pair) changeDefaultPVID(context.Context) (string, bool, error) {
	v := p.someVLAN()
	if p.gen.chance(30) {
		v = 0
	}
	err := p.both(func(h *host) error { return h.setDefaultPVID(v) })
	if err == nil {
		err = p.followVLANs()
	}
	return fmt.Sprintf("default PVID: %d", v), true, err
}

// openVLANs makes the bridges VLAN-aware ones of a random kind.
func (p *pair) openVLANs() error {
	b := p.net.bridging
	if b == nil {
		return nil
	}
	if p.gen.chance(40) {
		b.tpid = unix.ETH_P_8021AD
		if err := p.both(func(h *host) error { return h.setTPID(b.tpid) }); err != nil {
			return err
		}
	}
	for i := range specs {
		for _, r := range p.randomVLANs() {
			if err := p.both(func(h *host) error { return h.setVLANs(i, r) }); err != nil {
				return err
			}
		}
	}
	return p.followVLANs()
}
