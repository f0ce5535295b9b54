package bridge

import (
	"encoding/binary"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	kindBridge = "bridge"
	kindTap    = "tun" // taps and TUN devices share a kind
	kindBond   = "bond"
	kindVLAN   = "vlan"
	kindVeth   = "veth"

	kindHardware = "device"
	// kindSoftware is for devices without a kind and without hardware.
	kindSoftware = "software device"
)

// A link is what the mirror keeps of a network device. It keeps all devices,
// because a port's role can depend on one that is no port.
type link struct {
	index  int
	name   string
	kind   string
	mac    vswitch.MAC
	mtu    int
	flags  uint32 // IFF_*
	master int    // ifindex; 0 for none
	lower  int    // ifindex of the device below in the same namespace; 0 for none

	parent      bool // has a bus device as parent: it is hardware
	tun         bool // IFF_TUN mode: carries no Ethernet frames
	promiscuous bool
	noTSO       bool // a tap that takes no merged TCP segments

	// Of a bridge.
	vlanFiltering bool
	vlanProtocol  uint16
	ageing        time.Duration

	// Of a VLAN device.
	vlan vswitch.VLAN
	tpid uint16

	// Of a device of a bond.
	bonded bool
	active bool // the bond takes its frames

	// Of a bridge port.
	port     bool
	stp      vswitch.STPState
	learning bool
	set      vswitch.PortFlags
	settings []string
}

// parseLink reads the body of RTM_NEWLINK or RTM_DELLINK.
func parseLink(b []byte) (family uint8, l *link, ok bool) {
	var msg unix.IfInfomsg
	ad, err := decode(b, &msg)
	if err != nil {
		return 0, nil, false
	}
	l = &link{index: int(msg.Index), flags: msg.Flags}
	elsewhere := false
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			l.name = ad.String()
		case unix.IFLA_ADDRESS:
			if v := ad.Bytes(); len(v) == len(l.mac) {
				l.mac = vswitch.MAC(v)
			}
		case unix.IFLA_MTU:
			l.mtu = int(ad.Uint32())
		case unix.IFLA_MASTER:
			l.master = int(ad.Uint32())
		case unix.IFLA_LINK:
			l.lower = int(ad.Uint32())
		case unix.IFLA_LINK_NETNSID:
			elsewhere = true
		case unix.IFLA_PROMISCUITY:
			l.promiscuous = ad.Uint32() != 0
		case unix.IFLA_PARENT_DEV_NAME:
			l.parent = true
		case unix.IFLA_LINKINFO:
			ad.Nested(l.parseInfo)
		case unix.IFLA_PROTINFO:
			if msg.Family == unix.AF_BRIDGE {
				ad.Nested(l.parsePort)
			}
		}
	}
	if elsewhere {
		l.lower = 0
	}
	if msg.Family == unix.AF_UNSPEC && l.kind == "" && !l.parent && msg.Type == unix.ARPHRD_ETHER {
		l.parent = parentInSysfs(l.name, l.index)
	}
	// Wireless drivers send messages that have nothing but their own attribute.
	return msg.Family, l, ad.Err() == nil && l.index > 0 && l.name != ""
}

// parseInfo reads IFLA_LINKINFO, where kinds come before what depends on them.
func (l *link) parseInfo(ad *netlink.AttributeDecoder) error {
	slave := ""
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_INFO_KIND:
			l.kind = ad.String()
		case unix.IFLA_INFO_DATA:
			switch l.kind {
			case kindBridge:
				ad.Nested(l.parseBridge)
			case kindTap:
				ad.Nested(l.parseTap)
			case kindVLAN:
				ad.Nested(l.parseVLAN)
			}
		case unix.IFLA_INFO_SLAVE_KIND:
			slave = ad.String()
		case unix.IFLA_INFO_SLAVE_DATA:
			switch slave {
			case kindBridge:
				ad.Nested(l.parsePort)
			case kindBond:
				ad.Nested(l.parseBonded)
			}
		}
	}
	return nil
}

func (l *link) parseBridge(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_BR_AGEING_TIME:
			l.ageing = clock(ad.Uint32())
		case unix.IFLA_BR_VLAN_FILTERING:
			l.vlanFiltering = ad.Uint8() != 0
		case unix.IFLA_BR_VLAN_PROTOCOL:
			l.vlanProtocol = bigEndian(ad)
		}
	}
	return nil
}

func (l *link) parseVLAN(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_VLAN_ID:
			l.vlan = vswitch.VLAN(ad.Uint16()) % vswitch.VLANs
		case unix.IFLA_VLAN_PROTOCOL:
			l.tpid = bigEndian(ad)
		}
	}
	return nil
}

// bigEndian reads a number in network byte order.
func bigEndian(ad *netlink.AttributeDecoder) uint16 {
	if b := ad.Bytes(); len(b) == 2 {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (l *link) parseTap(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		if ad.Type() == unix.IFLA_TUN_TYPE {
			l.tun = ad.Uint8() != unix.IFF_TAP
		}
	}
	return nil
}

// parsePort reads the attributes of a bridge port (IFLA_BRPORT_*). Drivers
// with a bridge of their own send some of them too, but without a state.
func (l *link) parsePort(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_BRPORT_STATE:
			l.port = true
			l.stp = vswitch.STPState(ad.Uint8())
		case unix.IFLA_BRPORT_LEARNING:
			l.learning = ad.Uint8() != 0
		case unix.IFLA_BRPORT_ISOLATED:
			l.set.Isolated = ad.Uint8() != 0
		case unix.IFLA_BRPORT_LOCKED:
			l.set.Locked = ad.Uint8() != 0
		}
		l.settings = appendSetting(l.settings, ad)
	}
	slices.Sort(l.settings)
	return nil
}

// parentInSysfs says whether a device has a bus device as parent. Kernels
// before 5.14 don't say so by netlink. /sys may show another network namespace,
// hence the comparison.
func parentInSysfs(name string, index int) bool {
	dir := "/sys/class/net/" + name
	b, err := os.ReadFile(dir + "/ifindex")
	if err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(index) {
		return false
	}
	_, err = os.Lstat(dir + "/device")
	return err == nil
}

// up says whether frames can pass the device. The bridge disables a port that
// is not operational (IFF_RUNNING); the kernel updates that up to a second
// after the carrier (IFF_LOWER_UP), which the bridge looks at for backup ports.
func (l *link) up() bool {
	const want = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP
	return l.flags&want == want
}

// applyLink takes over one link event.
func (m *Mirror) applyLink(family uint8, deleted bool, l *link, c *Change) {
	old := m.links[l.index]
	switch {
	case family == unix.AF_UNSPEC && deleted:
		delete(m.links, l.index)
		c.Gone = append(c.Gone, l.index)
	case family == unix.AF_UNSPEC:
		l.askTSO()
		m.links[l.index] = l
	// The bridge's own messages tell only of its part: a port's state and
	// flags, or that the port leaves. Those about the bridge device name it as
	// its own master.
	case old == nil || l.master == l.index:
		return
	case deleted:
		if old.master != l.master {
			return
		}
		left := *old
		left.master, left.port, left.settings = 0, false, nil
		m.links[l.index] = &left
	default:
		if !l.port {
			return
		}
		now := *old
		now.name, now.mac, now.mtu, now.flags, now.master = l.name, l.mac, l.mtu, l.flags, l.master
		now.port, now.stp, now.learning, now.set, now.settings = true, l.stp, l.learning, l.set, l.settings
		m.links[l.index] = &now
	}
	if now := m.links[l.index]; now == nil || old != nil && old.master != now.master {
		delete(m.vlans, l.index) // the kernel tells those of the new bridge later
	}
	m.place(l.index, c)
	if now := m.links[l.index]; old == nil || now == nil || old.name != now.name ||
		old.kind != now.kind || old.parent != now.parent || old.lower != now.lower || old.vlan != now.vlan || old.tpid != now.tpid ||
		(old.bonded || now.bonded || m.taken[l.index] != nil) && !sameCarrier(old, now) {
		m.relate()
		m.placeAll(c)
	}
	if now := m.links[l.index]; old != nil && now != nil && now.kind == kindBridge && old.promiscuous != now.promiscuous {
		c.Topology = true
	}
}

// placeAll makes the ports follow what the mirror knows of links.
func (m *Mirror) placeAll(c *Change) {
	for index, l := range m.links {
		if l.master != 0 || l.kind == kindBridge {
			m.place(index, c)
		}
	}
}

// place makes Bridges, Ports and FDB follow what the mirror knows of a link.
func (m *Mirror) place(index int, c *Change) {
	l := m.links[index]
	before := m.bridgeOf(index)
	had, wasBridge := m.Bridges[index]
	if l != nil && l.kind == kindBridge {
		br := l.bridge()
		m.Bridges[index] = br
		c.Topology = c.Topology || !wasBridge || br != had
	} else if wasBridge {
		delete(m.Bridges, index)
		c.Topology = true
	}

	old, wasPort := m.Ports[index]
	if l != nil && l.port && m.links[l.master] != nil && m.links[l.master].kind == kindBridge {
		p := m.portOf(l)
		m.Ports[index] = p
		c.Topology = c.Topology || !wasPort || !samePort(p, old)
	} else if wasPort {
		delete(m.Ports, index)
		c.Topology = true
	}
	if after := m.bridgeOf(index); before != after || after == 0 {
		m.forget(index, c)
	}
}

func (l *link) bridge() vswitch.Bridge {
	br := vswitch.Bridge{
		Ifindex: l.index,
		Name:    l.name,
		MAC:     l.mac,
		// Its carrier only repeats that some port forwards.
		Up:            l.flags&unix.IFF_UP != 0,
		VLANFiltering: l.vlanFiltering,
		Ageing:        l.ageing,
	}
	if br.VLANFiltering {
		br.VLANProtocol = l.vlanProtocol
	}
	return br
}

func (m *Mirror) portOf(l *link) vswitch.Port {
	kind := l.kind
	switch {
	case kind == "" && l.parent:
		kind = kindHardware
	case kind == "":
		kind = kindSoftware
	}
	carrier, vethMTU := m.carrier(l)
	return vswitch.Port{
		Ifindex:  l.index,
		Name:     l.name,
		Bridge:   l.master,
		Role:     m.role(l),
		Kind:     kind,
		MAC:      l.mac,
		MTU:      l.mtu,
		Up:       l.up(),
		STP:      l.stp,
		NoTSO:    l.noTSO,
		Flags:    l.set,
		Settings: l.settings,

		VLANs:      m.vlans[l.index],
		TakenVLANs: m.taken[l.index],

		Carrier: carrier,
		VethMTU: vethMTU,
	}
}

// role decides on which side of the switch a port is.
func (m *Mirror) role(l *link) vswitch.Role {
	switch {
	case m.uplink(l, 0):
		return vswitch.RoleUplink
	case l.kind == kindTap && !l.tun:
		return vswitch.RoleGuest
	}
	return vswitch.RoleOther
}

// uplink says whether a device is one, or a VLAN (in a VLAN …) over one.
func (m *Mirror) uplink(l *link, depth int) bool {
	if slices.Contains(m.options.Uplinks, l.name) {
		return true
	}
	switch l.kind {
	case "":
		return l.parent
	case kindBond:
		return true
	case kindVLAN:
		// The kernel nests devices at most 8 deep, but events can be stale.
		below := m.links[l.lower]
		return below != nil && depth < 8 && m.uplink(below, depth+1)
	}
	return false
}

func samePort(a, b vswitch.Port) bool {
	return a.Ifindex == b.Ifindex && a.Name == b.Name && a.Bridge == b.Bridge && a.Role == b.Role &&
		a.Kind == b.Kind && a.MAC == b.MAC && a.MTU == b.MTU && a.Up == b.Up && a.STP == b.STP && a.NoTSO == b.NoTSO &&
		a.VLANs == b.VLANs && a.TakenVLANs == b.TakenVLANs && a.Flags == b.Flags &&
		a.Carrier == b.Carrier && a.VethMTU == b.VethMTU && slices.Equal(a.Settings, b.Settings)
}
