package bridge

import (
	"errors"
	"fmt"
	"maps"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// Resync reads everything again. After an error the mirror is as it was.
//
// It also repairs what events can't: the kernel makes some of them outside the
// lock that orders the changes, so two about the same thing may come in the
// wrong order, and a dump of a table from which entries are deleted meanwhile
// may leave some out. Nor does the kernel tell that it shortens a bridge's
// ageing time while its spanning tree changes. Call it now and then, and soon again
// while the mirror is Partial.
func (m *Mirror) Resync() (Change, error) {
	between := m.Between
	if m.stale || between == nil {
		between = func() {}
	}
	next := blank(m.options)
	next.readFor = m.readFor
	epoch, err := m.gate.begin()
	if err == nil {
		var full map[int]bool
		if full, err = next.look(m, epoch, between); err != nil {
			err = errors.Join(err, m.gate.end(nil, nil))
		} else {
			err = m.gate.end(next, full)
		}
	}
	if err != nil {
		m.stale = true
		return Change{}, fmt.Errorf("reading everything: %w", err)
	}
	m.gate.roles(next.Ports)
	c := Change{Resync: true}
	c.Topology = !maps.Equal(m.Bridges, next.Bridges) || !maps.EqualFunc(m.Ports, next.Ports, samePort) ||
		!maps.Equal(m.promiscuous(), next.promiscuous())
	diffFDB(m.FDB, next.FDB, &c)
	c.FDB = unique(c.FDB)
	m.links, m.vlans, m.taken, m.bonded = next.links, next.vlans, next.taken, next.bonded
	m.Bridges, m.Ports = next.Bridges, next.Ports
	m.FDB, m.entries, m.read, m.partial = next.FDB, next.entries, next.read, next.partial
	m.stale, m.epoch = false, epoch
	return c, nil
}

// Partial says that a bridge's table is so large that not all ports' parts of it have
// been read since the mirror was opened or events were lost. Some addresses are then
// missing, and none is wrong.
func (m *Mirror) Partial() bool { return len(m.partial) > 0 }

// look reads everything into an empty mirror. full are the ports with more entries
// than their bound.
func (m *Mirror) look(old *Mirror, epoch uint64, between func()) (full map[int]bool, err error) {
	if err := m.dumpLinks(old.requests); err != nil {
		return nil, fmt.Errorf("reading the links: %w", err)
	}
	m.taken = old.taken
	m.relate()
	if err := m.dumpVLANs(old.requests, old.vlans); err != nil {
		return nil, fmt.Errorf("reading the ports' VLANs: %w", err)
	}
	m.placeAll(&Change{})
	m.FDB = make(map[vswitch.FDBKey]vswitch.FDBEntry, len(old.FDB))
	t := tables{Mirror: m, old: old, full: map[int]bool{}, learned: map[int]int{}, between: between}
	if err := t.read(epoch); err != nil {
		return nil, fmt.Errorf("reading the forwarding tables: %w", err)
	}
	return t.full, nil
}

// dumpLinks reads all links, again if they changed meanwhile.
func (m *Mirror) dumpLinks(c *conn) error {
	attributes := netlink.NewAttributeEncoder()
	attributes.Uint32(unix.IFLA_EXT_MASK, rtextFilterSkipStats)
	req, err := request(unix.RTM_GETLINK, unix.IfInfomsg{}, attributes)
	if err != nil {
		return err
	}
	for range 10 {
		clear(m.links)
		err = c.dump(req, func(b []byte) bool {
			if _, l, ok := parseLink(b); ok {
				l.askTSO()
				m.links[l.index] = l
			}
			return true
		})
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	return err
}
