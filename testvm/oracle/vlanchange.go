package oracle

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// vlanChanges are what may happen to VLANs.
var vlanChanges = []changeKind{
	{"VLANs of port", 14, (*generator).portVLANs, (*pair).changeVLANs},
	{"PVID", 5, (*generator).pvid, (*pair).changeVLANs},
	{"VLANs of the bridge", 2, (*generator).bridgeVLANs, (*pair).changeVLANs},
	{"VLAN filtering", 2, (*generator).filtering, (*pair).changeFiltering},
	{"VLAN protocol", 1, (*generator).protocol, (*pair).changeProtocol},
	{"default PVID", 2, (*generator).defaultPVID, (*pair).changeDefaultPVID},
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

// changeVLANs changes VLANs on both hosts. Frames that went somewhere before go
// elsewhere unless the VLANs are new to the port.
func (p *pair) changeVLANs(_ context.Context, c *change) (done, moves bool, err error) {
	if p.net.bridging == nil || c.Port != theBridge && !p.there(c) {
		return false, false, nil
	}
	m := p.net.bridging.ports[int(c.Port)]
	for _, r := range c.VLANs {
		moves = moves || r.PVID || r.Remove || c.Port == theBridge
		for v := r.First; v <= r.Last; v++ {
			moves = moves || m.has(v)
			// The bridge's own addresses take the places of others.
			for i := range specs {
				_, known := p.net.learned[p.net.key(portMAC(i), v)]
				moves = moves || known
			}
		}
		if err := p.both(func(h *host) error { return h.setVLANs(int(c.Port), r) }); err != nil {
			return false, false, err
		}
	}
	return true, moves, p.followVLANs()
}

// randomVLANs gives the VLANs that a port is made with.
func (g *generator) randomVLANs() (list []vlanRange) {
	if g.network.bridging == nil {
		return nil
	}
	list = append(list, vlanRange{First: 1, Last: 1, Remove: true})
	for _, v := range vlans {
		if v != management && g.chance(75) {
			list = append(list, vlanRange{First: v, Last: v, PVID: g.chance(40), Untagged: g.chance(50)})
		}
	}
	if g.chance(20) {
		list = append(list, g.wide())
	}
	return list
}

// wide gives a long range, seldom a very long one: the hosts have an address of their
// own in each VLAN, and reading their tables takes as much longer.
func (g *generator) wide() vlanRange {
	length := 50
	if g.chance(5) {
		length = wideLast - wideFirst
	}
	length = 1 + g.IntN(length)
	first := wideFirst + g.IntN(wideLast-wideFirst-length+1)
	return vlanRange{First: uint16(first), Last: uint16(first + length), Untagged: g.chance(50)}
}

// someVLAN gives one that is not the management's.
func (g *generator) someVLAN() uint16 {
	return one(g, slices.DeleteFunc(slices.Clone(vlans), func(v uint16) bool { return v == management }))
}

// portVLANs puts a port into VLANs, or takes it out.
func (g *generator) portVLANs() *change {
	i, ok := g.somePresent(never)
	if !ok {
		return nil
	}
	v := g.someVLAN()
	r := vlanRange{First: v, Last: v, Untagged: g.chance(50)}
	switch {
	case g.chance(10):
		r = g.wide()
	case g.chance(10):
		r.Last += uint16(g.IntN(20))
	}
	if g.chance(33) {
		r.Remove, r.Untagged = true, false
	}
	return &change{Port: portNumber(i), VLANs: []vlanRange{r}}
}

// pvid makes another VLAN a port's PVID, or leaves it without.
func (g *generator) pvid() *change {
	i, ok := g.somePresent(never)
	if !ok {
		return nil
	}
	r := vlanRange{PVID: true, Untagged: g.chance(70)}
	v := g.someVLAN()
	if pvid := g.network.bridging.ports[i].pvid; pvid != 0 && g.chance(20) {
		v, r.PVID = pvid, false
	}
	r.First, r.Last = v, v
	return &change{Port: portNumber(i), VLANs: []vlanRange{r}}
}

func (g *generator) bridgeVLANs() *change {
	v := g.someVLAN()
	r := vlanRange{First: v, Last: v, Remove: g.chance(30)}
	if !r.Remove {
		r.PVID, r.Untagged = g.chance(40), g.chance(50)
	}
	return &change{Port: theBridge, VLANs: []vlanRange{r}}
}

func (g *generator) filtering() *change {
	return &change{Port: theBridge, On: !g.network.bridging.aware}
}

// changeFiltering switches VLAN filtering, and empties the bridges' tables: a refresh
// on a bridge that is not VLAN-aware is one in all VLANs of a port, whose entries count
// from then on.
func (p *pair) changeFiltering(_ context.Context, c *change) (done, moves bool, err error) {
	b := p.net.bridging
	if b == nil || b.aware == c.On {
		return false, false, nil
	}
	b.aware = c.On
	clear(p.net.learned)
	err = p.both(func(h *host) error { return h.setAware(b.aware) })
	if err == nil {
		err = p.both((*host).purge)
	}
	return true, true, err
}

// protocol says by VLAN of which kind tags become.
func (g *generator) protocol() *change {
	return &change{Port: theBridge, VLAN: g.network.bridging.tpid ^ unix.ETH_P_8021Q ^ unix.ETH_P_8021AD}
}

func (p *pair) changeProtocol(_ context.Context, c *change) (done, moves bool, err error) {
	b := p.net.bridging
	if b == nil || !tagType(c.VLAN) || b.tpid == c.VLAN {
		return false, false, nil
	}
	b.tpid = c.VLAN
	return true, true, p.both(func(h *host) error { return h.setTPID(b.tpid) })
}

func (g *generator) defaultPVID() *change {
	if g.chance(30) {
		return &change{Port: theBridge}
	}
	return &change{Port: theBridge, VLAN: g.someVLAN()}
}

func (p *pair) changeDefaultPVID(_ context.Context, c *change) (done, moves bool, err error) {
	if p.net.bridging == nil {
		return false, false, nil
	}
	err = p.both(func(h *host) error { return h.setDefaultPVID(c.VLAN) })
	if err == nil {
		err = p.followVLANs()
	}
	return true, true, err
}
