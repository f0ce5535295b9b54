package bridge

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// refreshBatch is the number of entries per send. The kernel takes the RTNL
// lock for each, and only errors and the last one are acknowledged.
const refreshBatch = 256

// maxTwins bounds the entries that one refresh makes.
const maxTwins = 16

// Refresh tells the bridges that learned addresses are in use, so that they
// don't age out while their frames take the fast path. Entries that the mirror
// has otherwise by now (gone, moved, not learned), and those of ports that are locked
// or without learning, are left out. It is called by the goroutine that calls Apply.
//
// The kernel takes the word of an entry's port: an address that the bridge has
// just learned elsewhere, of which the mirror does not know yet, moves back.
// Apply sees that by the event that was under way, and moves it to where the
// bridge had it. An address that the bridge has just forgotten comes back for
// another ageing time.
//
// On a bridge without VLAN filtering, whose ports usually have the VLAN 1 of
// default_pvid all the same, the kernel refreshes the address in each VLAN of
// the port too, and makes such entries where there are none. They mean nothing
// until filtering is switched on. Where a port has more than maxTwins VLANs, which
// would fill the bridge's table, its addresses age out instead and are learned anew.
//
// The error tells of entries that were refused for another reason than that the
// port is gone; the rest is refreshed all the same.
func (m *Mirror) Refresh(entries []vswitch.FDBEntry) error {
	use := make([]vswitch.FDBEntry, 0, len(entries))
	for _, e := range entries {
		now, ok := m.FDB[e.FDBKey]
		if !ok || now.Port != e.Port || now.Origin != vswitch.OriginLearned {
			continue
		}
		if l := m.links[e.Port]; l == nil || !l.learning || l.set.Locked {
			continue
		}
		if aware := m.Bridges[e.Bridge].VLANFiltering; aware != (e.VLAN != 0) {
			continue // the bridge looks at it no more
		}
		if set := m.vlans[e.Port]; e.VLAN == 0 && set != nil && set.Len() > maxTwins {
			continue
		}
		use = append(use, now)
	}
	if len(use) == 0 {
		return nil
	}
	if m.pending == nil {
		m.pending = make(map[vswitch.FDBKey]int, len(use))
	}
	for _, e := range use {
		m.pending[e.FDBKey] = e.Port
	}
	err := m.use(use)
	m.refreshes.Add(1)
	return err
}

// use sends NTF_USE for the entries.
func (m *Mirror) use(entries []vswitch.FDBEntry) error {
	var (
		first   error
		refused int
	)
	for batch := range slices.Chunk(entries, refreshBatch) {
		requests := make([]netlink.Message, len(batch))
		for i, e := range batch {
			var err error
			if requests[i], err = useRequest(e); err != nil {
				return fmt.Errorf("asking for a refresh of %s: %w", e.MAC, err)
			}
		}
		err := m.requests.change(requests, func(i int, err error) {
			e := batch[i]
			if gone(e, err) {
				return
			}
			if refused++; first == nil {
				first = fmt.Errorf("%s on port %d: %w", e.MAC, e.Port, err)
			}
		})
		if err != nil {
			return fmt.Errorf("refreshing forwarding entries: %w", err)
		}
	}
	if first != nil {
		return fmt.Errorf("refreshing forwarding entries: the kernel refused %d; the first, %w", refused, first)
	}
	return nil
}

// gone says whether an error means that the entry, its port or its VLAN there
// went away meanwhile.
func gone(e vswitch.FDBEntry, err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.EOPNOTSUPP) || // no bridge port any more
		e.VLAN != 0 && errors.Is(err, unix.EINVAL) // no such VLAN on the port
}

// useRequest says that an entry is in use.
func useRequest(e vswitch.FDBEntry) (netlink.Message, error) {
	attributes := netlink.NewAttributeEncoder()
	attributes.Bytes(unix.NDA_LLADDR, e.MAC[:])
	if e.VLAN != 0 {
		attributes.Uint16(unix.NDA_VLAN, uint16(e.VLAN))
	}
	return request(unix.RTM_NEWNEIGH, unix.NdMsg{
		Family:  unix.AF_BRIDGE,
		Ifindex: int32(e.Port),
		State:   unix.NUD_REACHABLE,
		Flags:   unix.NTF_MASTER | unix.NTF_USE,
	}, attributes)
}

// noteMove looks at an FDB event for a move that a refresh may have undone: the
// event was queued before the refresh, or it tells of what came later, when
// saying it again does nothing. The port of the refresh itself is no news: it
// is the echo.
func (m *Mirror) noteMove(deleted bool, e vswitch.FDBEntry) {
	port, ok := m.pending[e.FDBKey]
	switch {
	case !ok:
	case deleted || e.Origin == vswitch.OriginLocal:
		// Nothing to put back: the kernel does not move local entries.
		delete(m.moved, e.FDBKey)
	case e.Port != port:
		if m.moved == nil {
			m.moved = make(map[vswitch.FDBKey]vswitch.FDBEntry)
		}
		m.moved[e.FDBKey] = e
	}
}

// settle puts addresses back to where the bridge had moved them, each once: an
// answer is not answered, or two ports could pull an address to and fro. drained
// is the number of refreshes that had ended when the socket was last found
// empty.
func (m *Mirror) settle(drained uint64) error {
	var err error
	if len(m.moved) > 0 {
		back := make([]vswitch.FDBEntry, 0, len(m.moved))
		for key, e := range m.moved {
			if p, ok := m.Ports[e.Port]; ok && p.Bridge == key.Bridge {
				back = append(back, e)
			}
			delete(m.pending, key)
		}
		m.moved = nil
		err = m.use(back)
	}
	// Whatever was under way during the refreshes has been applied.
	if drained == m.refreshes.Load() {
		m.pending = nil
	}
	return err
}
