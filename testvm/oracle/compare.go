package oracle

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// take empties all places.
func (p *pair) take() (places []place, err error) {
	for i := range specs {
		pl := place{name: specs[i].name}
		if h := p.plain.ports[i]; h != nil {
			pl.plain = h.box.take()
		}
		if h := p.fast.ports[i]; h != nil {
			pl.fast = h.box.take()
		}
		places = append(places, pl)
	}
	local := place{name: "the host's stack at a port"}
	if local.plain, err = p.plain.takeLocal(); err != nil {
		return nil, err
	}
	if local.fast, err = p.fast.takeLocal(); err != nil {
		return nil, err
	}
	return append(places, local, place{"the host's stack", p.plain.stack.box.take(), p.fast.stack.box.take()}), nil
}

// compare waits until all frames have come out, and compares them and the
// bridges' tables.
func (p *pair) compare() error {
	clear(p.net.unseen)
	if err := p.both(func(h *host) error { return h.barrier(p.net.reach) }); err != nil {
		return p.difference([]string{err.Error()})
	}
	if p.away == "" && len(p.net.moved) > 0 && !p.unsettled {
		if err := p.settleEntries(); err != nil {
			return err
		}
	}
	found, _, err := p.compareTables()
	if err != nil {
		return err
	}
	places, err := p.take()
	if err != nil {
		return err
	}
	for _, pl := range places {
		p.report.Out += len(pl.plain)
		d := pl.differences()
		if r := pl.reordered(); len(d) == 0 && r != "" {
			d = append(d, r)
		}
		found = append(found, d...)
	}
	if len(found) > 0 {
		return p.difference(found)
	}
	p.journal = p.journal[:0]
	return nil
}

// compareTables tells where the two bridges' tables differ, and of which learned
// entries that is because only the fast host has them.
//
// Entries in a VLAN count on a VLAN-aware bridge alone, and the others on one that is
// not: a bridge looks at no others, and a refresh may make them.
func (p *pair) compareTables() (d []string, more map[fdbKey]netlink.Neigh, err error) {
	plain, err := p.plain.fdb()
	if err != nil {
		return nil, nil, err
	}
	fast, err := p.fast.fdb()
	if err != nil {
		return nil, nil, err
	}
	const kinds = netlink.NUD_PERMANENT | netlink.NUD_NOARP
	show := func(h *host, e netlink.Neigh) string {
		return fmt.Sprintf("on %s (state %#x, flags %#x)", h.device(e.LinkIndex), e.State&kinds, e.Flags)
	}
	more = map[fdbKey]netlink.Neigh{}
	for key, e := range fast {
		if _, ok := plain[key]; !ok && p.fast.uses(key) {
			d = append(d, fmt.Sprintf("the bridge's table: %s is %s on the fast host alone", key, show(p.fast.host, e)))
			if e.State&kinds == 0 {
				more[key] = e
			}
		}
	}
	for key, e := range plain {
		want, have := show(p.plain, e), "not there"
		if other, ok := fast[key]; ok {
			have = show(p.fast.host, other)
		}
		if have != want && p.fast.uses(key) {
			d = append(d, fmt.Sprintf("the bridge's table: %s is %s on the plain host, %s on the fast one", key, want, have))
		}
	}
	return d, more, nil
}
