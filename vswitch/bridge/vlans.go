package bridge

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// The kernel's linux/if_bridge.h, of which package unix has nothing: VLANs of bridge
// ports by messages of their own (Linux 5.6). Unlike those of links they say what has
// changed, and tell of each change.
const (
	vlandbEntry = 1 // nested

	vlandbEntryInfo  = 1
	vlandbEntryRange = 2
	vlandbEntryState = 3

	vlanInfoPVID     = 1 << 1
	vlanInfoUntagged = 1 << 2
)

// brVLANMsg is struct br_vlan_msg.
type brVLANMsg struct {
	Family  uint8
	_       uint8
	_       uint16
	Ifindex uint32
}

// A vlanEvent is one message about the VLANs of a port, or of a bridge itself.
type vlanEvent struct {
	port   int
	ranges []vlanRange
}

// A vlanRange is VLANs that are alike.
type vlanRange struct {
	first, last vswitch.VLAN
	pvid        bool
	untagged    bool
	blocked     bool // by spanning tree, in these VLANs
}

// parseVLANs reads the body of RTM_NEWVLAN or RTM_DELVLAN.
func parseVLANs(b []byte) (e *vlanEvent, ok bool) {
	var msg brVLANMsg
	ad, err := decode(b, &msg)
	if err != nil || msg.Family != unix.AF_BRIDGE {
		return nil, false
	}
	e = &vlanEvent{port: int(msg.Ifindex)}
	for ad.Next() {
		if ad.Type() == vlandbEntry {
			ad.Nested(e.parseEntry)
		}
	}
	return e, ad.Err() == nil
}

func (e *vlanEvent) parseEntry(ad *netlink.AttributeDecoder) error {
	var r vlanRange
	for ad.Next() {
		switch ad.Type() {
		case vlandbEntryInfo:
			if v := ad.Bytes(); len(v) == 4 { // struct bridge_vlan_info
				flags := native.Uint16(v)
				r.first = vswitch.VLAN(native.Uint16(v[2:]))
				r.last = max(r.last, r.first)
				r.pvid, r.untagged = flags&vlanInfoPVID != 0, flags&vlanInfoUntagged != 0
			}
		case vlandbEntryRange:
			r.last = vswitch.VLAN(ad.Uint16())
		case vlandbEntryState:
			r.blocked = vswitch.STPState(ad.Uint8()) != vswitch.STPForwarding
		}
	}
	if r.first < 1 || r.last < r.first || r.last >= vswitch.VLANs {
		return fmt.Errorf("reading a range of VLANs: %d to %d", r.first, r.last)
	}
	e.ranges = append(e.ranges, r)
	return nil
}

// apply gives the set as it is after the event.
func (e *vlanEvent) apply(deleted bool, old *vswitch.VLANSet) *vswitch.VLANSet {
	var set vswitch.VLANSet
	if old != nil {
		set = *old
	}
	for _, r := range e.ranges {
		for v := r.first; v <= r.last; v++ {
			// The kernel does not tell of a VLAN that stops being the PVID because
			// another becomes it.
			switch {
			case r.pvid && !deleted:
				set.PVID = v
			case set.PVID == v:
				set.PVID = 0
			}
			if deleted || r.blocked {
				set.Remove(v)
			} else {
				set.Put(v, r.untagged)
			}
		}
	}
	return reuse(set, old)
}

// reuse gives the set, by the old pointer if it is the same, and nil if it is empty.
func reuse(set vswitch.VLANSet, old *vswitch.VLANSet) *vswitch.VLANSet {
	switch {
	case set == (vswitch.VLANSet{}):
		return nil
	case old != nil && *old == set:
		return old
	}
	return &set
}

// applyVLANs takes over one event about VLANs.
func (m *Mirror) applyVLANs(deleted bool, e *vlanEvent, c *Change) {
	m.vlans[e.port] = e.apply(deleted, m.vlans[e.port])
	if m.links[e.port] != nil { // the kernel announces a bridge's own before the bridge
		m.place(e.port, c)
	}
}

// dumpVLANs reads the VLANs of all ports. A kernel without VLAN filtering, or one
// that does not tell of VLANs, has none: all frames of a VLAN-aware bridge then pass.
func (m *Mirror) dumpVLANs(c *conn, old map[int]*vswitch.VLANSet) error {
	req, err := request(unix.RTM_GETVLAN, brVLANMsg{Family: unix.AF_BRIDGE}, netlink.NewAttributeEncoder())
	if err != nil {
		return err
	}
	for range 10 {
		clear(m.vlans)
		err = c.dump(req, func(b []byte) bool {
			if e, ok := parseVLANs(b); ok {
				m.vlans[e.port] = e.apply(false, m.vlans[e.port])
			}
			return true
		})
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	for port, set := range m.vlans {
		if set != nil {
			m.vlans[port] = reuse(*set, old[port])
		}
	}
	return err
}

// takeVLANs notes which VLANs of which devices have a VLAN device, which gets their
// frames before the bridge can. One that has been moved to another network namespace
// can't be seen from here.
func (m *Mirror) takeVLANs() {
	taken := map[int]vswitch.VLANSet{}
	for _, l := range m.links {
		if l.kind == kindVLAN && l.lower != 0 {
			set := taken[l.lower]
			set.Put(l.vlan, false)
			taken[l.lower] = set
		}
	}
	old := m.taken
	m.taken = make(map[int]*vswitch.VLANSet, len(taken))
	for lower, set := range taken {
		m.taken[lower] = reuse(set, old[lower])
	}
}
