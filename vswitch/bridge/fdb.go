package bridge

import (
	"bytes"
	"cmp"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// parseEntry reads the body of RTM_NEWNEIGH or RTM_DELNEIGH. Only entries of a
// bridge are ok: a device's own filters and a tunnel's table come by the same
// messages.
func parseEntry(b []byte, now time.Time) (e vswitch.FDBEntry, ok bool) {
	var msg unix.NdMsg
	ad, err := decode(b, &msg)
	if err != nil || msg.Family != unix.AF_BRIDGE || msg.Flags&unix.NTF_SELF != 0 {
		return e, false
	}
	e.Port, e.Updated = int(msg.Ifindex), now
	for ad.Next() {
		switch ad.Type() {
		case unix.NDA_LLADDR:
			if v := ad.Bytes(); len(v) == len(e.MAC) {
				e.MAC = vswitch.MAC(v)
				ok = true
			}
		case unix.NDA_MASTER:
			e.Bridge = int(ad.Uint32())
		case unix.NDA_VLAN:
			e.VLAN = vswitch.VLAN(ad.Uint16())
		case unix.NDA_CACHEINFO:
			// Four numbers: confirmed, used, updated, references.
			if v := ad.Bytes(); len(v) >= 12 {
				e.Updated = now.Add(-clock(native.Uint32(v[8:])))
			}
		}
	}
	switch {
	case msg.State&unix.NUD_PERMANENT != 0:
		e.Origin = vswitch.OriginLocal
	case msg.Flags&unix.NTF_EXT_LEARNED != 0:
		e.Origin = vswitch.OriginExtern
	case msg.State&unix.NUD_NOARP != 0:
		e.Origin = vswitch.OriginStatic
	default:
		e.Origin = vswitch.OriginLearned
	}
	return e, ok && e.Bridge != 0 && ad.Err() == nil
}

// applyEntry takes over one FDB event.
func (m *Mirror) applyEntry(ev *event, c *Change) {
	e := ev.entry
	m.noteMove(ev.deleted, e)
	if ev.epoch < m.epoch {
		return // the gate has forgotten it: what was read since knows better
	}
	changed := false
	if ev.deleted || ev.beyond {
		changed = m.remove(e.FDBKey)
	} else {
		changed = m.put(e)
	}
	if changed {
		c.FDB = append(c.FDB, e.FDBKey)
	}
}

// put takes over an entry and says whether that changes where frames go or who
// said so. An entry of a device that is not a port of its bridge (any more) is
// as good as none. One of a device that the mirror has not heard of is not: the
// kernel announces a new bridge's own address before the bridge.
func (m *Mirror) put(e vswitch.FDBEntry) (changed bool) {
	if m.links[e.Port] != nil && m.bridgeOf(e.Port) != e.Bridge {
		return m.remove(e.FDBKey)
	}
	old, ok := m.FDB[e.FDBKey]
	m.FDB[e.FDBKey] = e
	if ok {
		m.count(old.Port, -1)
	}
	m.count(e.Port, 1)
	return !ok || old.Port != e.Port || old.Origin != e.Origin
}

func (m *Mirror) remove(key vswitch.FDBKey) (changed bool) {
	e, ok := m.FDB[key]
	if ok {
		delete(m.FDB, key)
		m.count(e.Port, -1)
	}
	return ok
}

// bridgeOf gives the bridge to which a port belongs: its own for a bridge, 0 for
// a device that is neither.
func (m *Mirror) bridgeOf(index int) int {
	if _, ok := m.Bridges[index]; ok {
		return index
	}
	return m.Ports[index].Bridge
}

// count keeps the number of entries per port, so that a port that leaves
// without any, as they do, costs no walk through the FDB.
func (m *Mirror) count(port, n int) {
	if m.entries[port] += n; m.entries[port] == 0 {
		delete(m.entries, port)
	}
}

// forget removes the entries of a port that are not of its bridge.
func (m *Mirror) forget(port int, c *Change) {
	if m.entries[port] == 0 {
		return
	}
	keep := m.bridgeOf(port)
	for key, e := range m.FDB {
		if e.Port == port && key.Bridge != keep && m.remove(key) {
			c.FDB = append(c.FDB, key)
		}
	}
}

// dumpFDB reads the FDB of every bridge.
func (m *Mirror) dumpFDB(c *conn) error {
	req, err := request(unix.RTM_GETNEIGH, unix.NdMsg{Family: unix.AF_BRIDGE}, netlink.NewAttributeEncoder())
	if err != nil {
		return err
	}
	now := time.Now()
	return c.dump(req, func(b []byte) bool {
		if e, ok := parseEntry(b, now); ok {
			m.put(e)
		}
		return true
	})
}

// dumpPorts reads the FDB port by port, of each up to its bound of learned
// entries; full gets the ports that have more. The kernel walks through a bridge's
// whole FDB for each port, and from the beginning again for each datagram of an
// answer, so a port with a million entries is not read to its end: that takes
// minutes.
func (m *Mirror) dumpPorts(g *gate, full map[int]bool, between func()) (err error) {
	c, err := dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, indexes := range []iter.Seq[int]{maps.Keys(m.Bridges), maps.Keys(m.Ports)} {
		for index := range indexes {
			more, err := m.dumpPort(c, index, g.bound(m.Ports[index].Role == vswitch.RoleUplink))
			if err != nil {
				return err
			}
			if between(); !more {
				continue
			}
			full[index] = true
			if err := c.Close(); err != nil {
				return err
			}
			if c, err = dial(); err != nil {
				return err
			}
		}
	}
	return nil
}

// dumpPort reads the entries of a port, or those of a bridge that lead to no
// port, up to a bound.
func (m *Mirror) dumpPort(c *conn, index, bound int) (more bool, err error) {
	req, err := request(unix.RTM_GETNEIGH, unix.IfInfomsg{Family: unix.AF_BRIDGE, Index: int32(index)}, netlink.NewAttributeEncoder())
	if err != nil {
		return false, err
	}
	n, now := 0, time.Now()
	err = c.dump(req, func(b []byte) bool {
		e, ok := parseEntry(b, now)
		if !ok {
			return true
		}
		if bounded(e) {
			if n++; n > bound {
				more = true
				return false
			}
		}
		m.put(e)
		return true
	})
	return more, err
}

// diffFDB adds the keys under which two tables differ.
func diffFDB(old, now map[vswitch.FDBKey]vswitch.FDBEntry, c *Change) {
	for key := range old {
		if _, ok := now[key]; !ok {
			c.FDB = append(c.FDB, key)
		}
	}
	for key, e := range now {
		if o, ok := old[key]; !ok || o.Port != e.Port || o.Origin != e.Origin {
			c.FDB = append(c.FDB, key)
		}
	}
}

// unique leaves each key once.
func unique(keys []vswitch.FDBKey) []vswitch.FDBKey {
	slices.SortFunc(keys, func(a, b vswitch.FDBKey) int {
		return cmp.Or(cmp.Compare(a.Bridge, b.Bridge), cmp.Compare(a.VLAN, b.VLAN), bytes.Compare(a.MAC[:], b.MAC[:]))
	})
	return slices.Compact(keys)
}
