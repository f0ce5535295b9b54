package bridge

import (
	"cmp"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// bondStateActive is the kernel's BOND_STATE_ACTIVE.
const bondStateActive = 0

// parseBonded reads the attributes of a device of a bond.
func (l *link) parseBonded(ad *netlink.AttributeDecoder) error {
	l.bonded = true
	for ad.Next() {
		if ad.Type() == unix.IFLA_BOND_SLAVE_STATE {
			l.active = ad.Uint8() == bondStateActive
		}
	}
	return nil
}

// relate notes what links are to each other: which carry VLAN devices, and which a
// bond has.
func (m *Mirror) relate() {
	m.takeVLANs()
	m.bonded = map[int][]*link{}
	for _, l := range m.links {
		if l.bonded {
			m.bonded[l.master] = append(m.bonded[l.master], l)
		}
	}
	for _, devices := range m.bonded {
		slices.SortFunc(devices, func(a, b *link) int { return cmp.Compare(a.index, b.index) })
	}
}

// sameCarrier says whether nothing has changed of a link that carries others.
func sameCarrier(a, b *link) bool {
	return a.master == b.master && a.bonded == b.bonded && a.active == b.active && a.up() == b.up() && a.mtu == b.mtu
}

// carrier says where XDP meets a port's frames, and the largest MTU of veths there.
func (m *Mirror) carrier(l *link) (c vswitch.Carrier, vethMTU int) {
	device := l
	if l.kind == kindVLAN {
		// A VLAN within a VLAN, or on a device that a bond has, is for tc alone.
		device = m.links[l.lower]
		if device == nil || device.kind == kindVLAN || device.bonded || !m.uplink(device, 0) {
			return c, 0
		}
		c = vswitch.Carrier{Ifindex: device.index, TPID: l.tpid, VLAN: l.vlan}
		c.Members[0] = device.index
	}
	if device.kind == kindVeth {
		vethMTU = device.mtu
	}
	if device.kind != kindBond {
		return c, vethMTU
	}
	members := c.Members[:0]
	for _, d := range m.bonded[device.index] {
		if d.kind == kindVeth {
			vethMTU = max(vethMTU, d.mtu)
		}
		// A VLAN device on a bond's device takes frames before the bond does.
		if d.active && d.up() && m.taken[d.index] == nil && len(members) < cap(members) {
			c.Ifindex, members = device.index, append(members, d.index)
		}
	}
	if len(members) == 0 {
		c.Members[0] = 0
	}
	return c, vethMTU
}

// upper says whether a device sits on a bridge and takes frames to addresses of its own.
// The bridge then listens to all while the device is up, which the kernel tells nobody.
func (m *Mirror) upper(l *link) bool {
	below := m.links[l.lower]
	return (l.kind == "macvlan" || l.kind == "macvtap") && below != nil && below.kind == kindBridge
}

// uppers names those of a bridge.
func (m *Mirror) uppers(bridge int) (names []string) {
	for _, l := range m.links {
		if l.lower == bridge && m.upper(l) {
			names = append(names, l.name)
		}
	}
	slices.Sort(names)
	return names
}
