package bridge

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// parseEntry reads the body of RTM_NEWNEIGH or RTM_DELNEIGH. Only entries of a
// bridge are ok: a device's own filters and a tunnel's table come by the same
// messages.
func parseEntry(b []byte, now time.Time) (e vswitch.FDBEntry, ok bool) {
	if len(b) < unix.SizeofNdMsg || b[0] != unix.AF_BRIDGE {
		return e, false
	}
	state, flags := native.Uint16(b[8:]), b[10]
	if flags&unix.NTF_SELF != 0 {
		return e, false
	}
	e.Port, e.Updated = int(int32(native.Uint32(b[4:]))), now
	for attributes := b[unix.SizeofNdMsg:]; len(attributes) > 0; {
		typ, v, rest, whole := nextAttribute(attributes)
		if !whole {
			return e, false
		}
		attributes = rest
		switch {
		case typ == unix.NDA_LLADDR && len(v) == len(e.MAC):
			e.MAC = vswitch.MAC(v)
			ok = true
		case typ == unix.NDA_MASTER && len(v) == 4:
			e.Bridge = int(native.Uint32(v))
		case typ == unix.NDA_VLAN && len(v) == 2:
			e.VLAN = vswitch.VLAN(native.Uint16(v))
		case typ == unix.NDA_CACHEINFO && len(v) >= 12:
			// Four numbers: confirmed, used, updated, references.
			e.Updated = now.Add(-clock(native.Uint32(v[8:])))
		}
	}
	switch {
	case state&unix.NUD_PERMANENT != 0:
		e.Origin = vswitch.OriginLocal
	case flags&unix.NTF_EXT_LEARNED != 0:
		e.Origin = vswitch.OriginExtern
	case state&unix.NUD_NOARP != 0:
		e.Origin = vswitch.OriginStatic
	default:
		e.Origin = vswitch.OriginLearned
	}
	return e, ok && e.Bridge != 0
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
