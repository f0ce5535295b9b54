package bridge

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

func TestPorts(t *testing.T) {
	newNetns(t)
	o := Options{Uplinks: []string{"wire"}}
	f := follow(t, o)

	br := addBridge(t, "br0")
	guest := addTap(t, "vnet0").index
	veth := addVeth(t, "veth0")
	wire := addVeth(t, "wire")
	loose := addVeth(t, "loose")
	ifb := addLink(t, &netlink.Ifb{LinkAttrs: attrs("ifb0")})
	roles := map[int]vswitch.Port{
		guest: {Role: vswitch.RoleGuest, Kind: "tun", NoTSO: true},
		veth:  {Role: vswitch.RoleOther, Kind: "veth"},
		wire:  {Role: vswitch.RoleUplink, Kind: "veth"},
		ifb:   {Role: vswitch.RoleOther, Kind: "ifb"},
	}
	add := func(l netlink.Link, role vswitch.Role) int {
		switch err := netlink.LinkAdd(l); {
		case errors.Is(err, unix.EOPNOTSUPP):
			t.Logf("SKIPPED: %s devices, which this kernel does not have", l.Type())
			return 0
		default:
			must(t, err)
		}
		if l.Type() == kindBond {
			under := addVeth(t, "slave")
			must(t, netlink.LinkSetDown(byIndex(t, under)))
			enslave(t, under, l.Attrs().Index)
		}
		must(t, netlink.LinkSetUp(l))
		roles[l.Attrs().Index] = vswitch.Port{Role: role, Kind: l.Type()}
		return l.Attrs().Index
	}
	vlan := func(name string, below int, role vswitch.Role) int {
		a := attrs(name)
		a.ParentIndex = below
		return add(&netlink.Vlan{LinkAttrs: a, VlanId: 7}, role)
	}
	wirev := vlan("wirev", wire, vswitch.RoleUplink)
	loosev := vlan("loosev", loose, vswitch.RoleOther)
	if bond := add(netlink.NewLinkBond(attrs("bond0")), vswitch.RoleUplink); bond != 0 {
		vlan("bondv", bond, vswitch.RoleUplink)
	}
	for index := range roles {
		enslave(t, index, br)
	}
	for index, want := range roles {
		l := byIndex(t, index).Attrs()
		f.wantPort(l.Name+" is up and forwarding", index, func(p vswitch.Port) bool { return p.Up && p.STP == vswitch.STPForwarding })
		want.Ifindex, want.Name, want.Bridge, want.MTU = index, l.Name, br, l.MTU
		want.MAC, want.Up, want.STP = vswitch.MAC(l.HardwareAddr), true, vswitch.STPForwarding
		if diff := cmp.Diff(want, f.Ports[index], cmpopts.IgnoreFields(want, "VLANs", "TakenVLANs", "Carrier", "VethMTU")); diff != "" {
			t.Errorf("port %s (-want +got):\n%s", l.Name, diff)
		}
	}
	f.wantFresh()
	if len(f.Ports) != len(roles) {
		t.Errorf("ports are %v, want those enslaved", f.Ports)
	}

	// A role can depend on the name of a device that is no port.
	must(t, netlink.LinkSetDown(byIndex(t, loose)))
	must(t, netlink.LinkSetDown(byIndex(t, wire)))
	must(t, netlink.LinkSetName(byIndex(t, wire), "cable"))
	must(t, netlink.LinkSetName(byIndex(t, loose), "wire"))
	for index, want := range map[int]vswitch.Role{wire: vswitch.RoleOther, wirev: vswitch.RoleOther, loosev: vswitch.RoleUplink} {
		if index != 0 {
			f.wantPort("roles follow names", index, func(p vswitch.Port) bool { return p.Role == want })
		}
	}

	must(t, netlink.LinkSetMTU(byIndex(t, guest), 1400))
	f.wantPort("the MTU changes", guest, func(p vswitch.Port) bool { return p.MTU == 1400 })
	must(t, netlink.LinkSetHardwareAddr(byIndex(t, guest), []byte{2, 0, 0, 9, 9, 9}))
	f.wantPort("the MAC changes", guest, func(p vswitch.Port) bool { return p.MAC == vswitch.MAC{2, 0, 0, 9, 9, 9} })
	must(t, netlink.LinkSetNoMaster(byIndex(t, guest)))
	f.wait("the guest's port leaves", func() bool { _, ok := f.Ports[guest]; return !ok })
	f.wantFresh()
}

// An AF_UNSPEC message of a device, as the kernel would send it.
func linkMessage(index int, name string, more ...[]byte) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint16(b[2:], unix.ARPHRD_ETHER)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[8:], unix.IFF_UP|unix.IFF_RUNNING|unix.IFF_LOWER_UP)
	b = appendAttribute(b, unix.IFLA_IFNAME, append([]byte(name), 0))
	for _, m := range more {
		b = append(b, m...)
	}
	return b
}

func linkInfo(kind, slave string, data []byte) []byte {
	var b []byte
	if kind != "" {
		b = appendAttribute(b, nl.IFLA_INFO_KIND, append([]byte(kind), 0))
	}
	if slave != "" {
		b = appendAttribute(b, nl.IFLA_INFO_SLAVE_KIND, append([]byte(slave), 0))
		b = appendAttribute(b, nl.IFLA_INFO_SLAVE_DATA|unix.NLA_F_NESTED, data)
	} else if data != nil {
		b = appendAttribute(b, nl.IFLA_INFO_DATA|unix.NLA_F_NESTED, data)
	}
	return appendAttribute(nil, unix.IFLA_LINKINFO|unix.NLA_F_NESTED, b)
}

// Devices that a test can't make.
func TestHardware(t *testing.T) {
	m := blank(Options{})
	u32 := func(typ, v int) []byte { return appendAttribute(nil, typ, native.AppendUint32(nil, uint32(v))) }
	port := linkInfo("", kindBridge, appendAttribute(nil, nl.IFLA_BRPORT_STATE, []byte{3}))
	parent := appendAttribute(nil, unix.IFLA_PARENT_DEV_NAME, []byte("0000:01:00.0\x00"))
	for _, msg := range [][]byte{
		linkMessage(1, "br0", linkInfo(kindBridge, "", append(
			appendAttribute(nil, nl.IFLA_BR_AGEING_TIME, native.AppendUint32(nil, 1550)),
			appendAttribute(nil, nl.IFLA_BR_VLAN_FILTERING, []byte{1})...))),
		linkMessage(8, "bond0", linkInfo(kindBond, "", nil)),
		linkMessage(9, "bond0.6", u32(unix.IFLA_LINK, 8), linkInfo(kindVLAN, "", nil)),
		linkMessage(10, "bond0.6.7", u32(unix.IFLA_LINK, 9), u32(unix.IFLA_MASTER, 1), port, linkInfo(kindVLAN, "", nil)),
		linkMessage(2, "eth0", parent, u32(unix.IFLA_MASTER, 1), port),
		linkMessage(3, "eth1", parent),
		linkMessage(4, "eth1.5", u32(unix.IFLA_LINK, 3), u32(unix.IFLA_MASTER, 1), port, linkInfo(kindVLAN, "", nil)),
		linkMessage(5, "odd0", u32(unix.IFLA_MASTER, 1), port),
		linkMessage(6, "far0", u32(unix.IFLA_LINK, 3), u32(unix.IFLA_LINK_NETNSID, 0), u32(unix.IFLA_MASTER, 1), port, linkInfo(kindVLAN, "", nil)),
		linkMessage(7, "tun0", u32(unix.IFLA_MASTER, 1), port, linkInfo(kindTap, "", appendAttribute(nil, nl.IFLA_TUN_TYPE, []byte{unix.IFF_TUN}))),
	} {
		family, l, ok := parseLink(msg)
		if !ok {
			t.Fatalf("message %x is not understood", msg)
		}
		m.applyLink(family, false, l, &Change{})
	}
	want := map[int]struct {
		role vswitch.Role
		kind string
	}{
		2: {vswitch.RoleUplink, "device"},
		4: {vswitch.RoleUplink, "vlan"},
		5: {vswitch.RoleOther, "software device"},
		6: {vswitch.RoleOther, "vlan"},
		7: {vswitch.RoleOther, "tun"},

		10: {vswitch.RoleUplink, "vlan"},
	}
	if br := m.Bridges[1]; !br.VLANFiltering || br.Ageing != 15500*time.Millisecond || !br.Up {
		t.Errorf("bridge is %+v", br)
	}
	if len(m.Ports) != len(want) {
		t.Errorf("ports are %v", m.Ports)
	}
	for index, w := range want {
		if p := m.Ports[index]; p.Role != w.role || p.Kind != w.kind {
			t.Errorf("port %s is %s of kind %q, want %s of kind %q", p.Name, p.Role, p.Kind, w.role, w.kind)
		}
	}
	// Wireless events have no name, and must not wipe out what is known.
	if _, _, ok := parseLink(linkMessage(2, "")[:unix.SizeofIfInfomsg]); ok {
		t.Error("a message without a name is taken for a link's state")
	}
}

func TestCarrier(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := addBridge(t, "br0")
	guest := addTap(t, "vnet0")
	enslave(t, guest.index, br)
	veth := addVeth(t, "veth0")
	enslave(t, veth, br)
	up := func(p vswitch.Port) bool { return p.Up && p.STP == vswitch.STPForwarding }
	down := func(p vswitch.Port) bool { return !p.Up && p.STP == vswitch.STPDisabled }
	f.wantPort("the tap is up", guest.index, up)
	f.wantPort("the veth is up", veth, up)

	must(t, netlink.LinkSetDown(byName(t, "veth0p")))
	f.wantPort("the veth has no carrier", veth, down)
	must(t, netlink.LinkSetUp(byName(t, "veth0p")))
	f.wantPort("the veth is up again", veth, up)

	must(t, unix.IoctlSetInt(guest.fd, unix.TUNSETPERSIST, 1))
	must(t, unix.Close(guest.fd))
	f.wantPort("a tap that nobody reads has no carrier", guest.index, down)
	f.wantFresh()
	must(t, netlink.LinkDel(byIndex(t, guest.index)))
	f.wait("the tap is gone", func() bool { _, ok := f.Ports[guest.index]; return !ok })

	must(t, netlink.LinkSetDown(byIndex(t, br)))
	f.wait("the bridge is down", func() bool { return !f.Bridges[br].Up })
	f.wantFresh()
}

func TestBridge(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := addBridge(t, "br0")
	f.wait("the bridge is up", func() bool { return f.Bridges[br].Up })
	want := vswitch.Bridge{Ifindex: br, Name: "br0", MAC: vswitch.MAC(byIndex(t, br).Attrs().HardwareAddr), Up: true, Ageing: 300 * time.Second}
	if diff := cmp.Diff(want, f.Bridges[br]); diff != "" {
		t.Errorf("bridge (-want +got):\n%s", diff)
	}
	if hasVLANFiltering(t, br) {
		f.wait("VLAN filtering is on", func() bool { return f.Bridges[br].VLANFiltering })
		setVLANFiltering(t, br, 0)
		f.wait("VLAN filtering is off", func() bool { return !f.Bridges[br].VLANFiltering })
	}
	setBridge(t, br, nl.IFLA_BR_AGEING_TIME, 1234)
	f.wait("the ageing time changes", func() bool { return f.Bridges[br].Ageing == 12340*time.Millisecond })

	// Made again under its name, it is another bridge.
	guest := addTap(t, "vnet0").index
	enslave(t, guest, br)
	f.wantPort("the tap joins", guest, func(p vswitch.Port) bool { return p.Bridge == br })
	learn(t, guest, mac(1), 0)
	f.wantEntry("an address is known", vswitch.FDBKey{Bridge: br, MAC: mac(1)}, guest)
	must(t, netlink.LinkDel(byIndex(t, br)))
	again := addBridge(t, "br0")
	f.wait("the bridge is there again", func() bool { return f.Bridges[again].Up })
	if _, ok := f.Bridges[br]; ok || len(f.Ports) != 0 {
		t.Errorf("the old bridge %d is still there: %v, ports %v", br, f.Bridges, f.Ports)
	}
	for key := range f.FDB {
		if key.Bridge != again {
			t.Errorf("entry %v of the old bridge is still there", key)
		}
	}
	f.wantFresh()
}

func TestPromiscuousBridge(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := addBridge(t, "br0")
	f.sync()
	if h := f.Holds(); len(h) != 0 {
		t.Errorf("a bridge at its defaults is held: %v", h)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	topo := f.topo
	must(t, unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
		&unix.PacketMreq{Ifindex: int32(br), Type: unix.PACKET_MR_PROMISC}))
	f.wait("a capture holds the bridge", func() bool { return len(f.Holds()[br]) == 1 && f.topo > topo })
	f.wantFresh()
	topo = f.topo
	must(t, unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_DROP_MEMBERSHIP,
		&unix.PacketMreq{Ifindex: int32(br), Type: unix.PACKET_MR_PROMISC}))
	f.wait("its end lets it go", func() bool { return len(f.Holds()) == 0 && f.topo > topo })
}

func TestSTP(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := addBridge(t, "br0")
	guest := addTap(t, "vnet0").index
	enslave(t, guest, br)
	f.wantPort("it forwards", guest, func(p vswitch.Port) bool { return p.STP == vswitch.STPForwarding })
	// Without STP the bridge itself takes a port out of blocking.
	for _, s := range []vswitch.STPState{vswitch.STPListening, vswitch.STPLearning, vswitch.STPDisabled, vswitch.STPForwarding} {
		setPort(t, guest, nl.IFLA_BRPORT_STATE, []byte{byte(s)})
		f.wantPort("the state is "+s.String(), guest, func(p vswitch.Port) bool { return p.STP == s })
	}
	f.wantFresh()

	// Two cables between two bridges are a loop, which the protocol breaks. Its
	// timers make the changes.
	far := addBridge(t, "br1")
	for _, index := range []int{br, far} {
		setBridge(t, index, nl.IFLA_BR_STP_STATE, 1)
		setBridge(t, index, nl.IFLA_BR_FORWARD_DELAY, 200)
	}
	for _, name := range []string{"a", "b"} {
		enslave(t, addVeth(t, name), br)
		enslave(t, byName(t, name+"p").Attrs().Index, far)
	}
	count := func(s vswitch.STPState) (n int) {
		for _, p := range f.Ports {
			if p.STP == s && p.Kind == "veth" {
				n++
			}
		}
		return n
	}
	f.wait("ports listen", func() bool { return count(vswitch.STPListening) > 0 })
	f.wait("ports learn", func() bool { return count(vswitch.STPLearning) > 0 })
	f.wait("the loop is broken", func() bool { return count(vswitch.STPForwarding) == 3 && count(vswitch.STPBlocking) == 1 })
	// The ageing time of a bridge whose spanning tree changes comes without an
	// event.
	_, err := f.Resync()
	must(t, err)
	f.wantFresh()
}

func TestPortMovesInOneStep(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	a, b := addBridge(t, "br0"), addBridge(t, "br1")
	guest := addTap(t, "vnet0").index
	enslave(t, guest, a)
	learn(t, guest, mac(1), 0)
	must(t, netlink.NeighAppend(neigh(guest, mac(2), 0, netlink.NUD_NOARP, 0)))
	f.wantEntry("an address is known", vswitch.FDBKey{Bridge: a, MAC: mac(2)}, guest)
	enslave(t, guest, b)
	f.wantPort("it is on the other bridge", guest, func(p vswitch.Port) bool { return p.Bridge == b })
	f.sync()
	for key, e := range f.FDB {
		if e.Port == guest && key.Bridge != b {
			t.Errorf("entry %+v of the old bridge is still there", e)
		}
	}
	f.wantFresh()
}

// The kernel tells of each entry that goes with its port, but the mirror does
// not depend on it.
func TestEntriesGoWithTheirPort(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	a, b := addBridge(t, "br0"), addBridge(t, "br1")
	guest := addTap(t, "vnet0").index
	enslave(t, guest, a)
	learn(t, guest, mac(1), 0)
	key := vswitch.FDBKey{Bridge: a, MAC: mac(1)}
	f.wantEntry("an address is known", key, guest)
	start := *f.links[guest]
	for name, ev := range map[string]event{
		"port gone":       {link: &start, family: unix.AF_UNSPEC, deleted: true},
		"port leaves":     {link: &start, family: unix.AF_BRIDGE, deleted: true},
		"port changes":    {link: &link{index: guest, name: "vnet0", kind: kindTap, master: b, port: true}},
		"port is not one": {link: &link{index: guest, name: "vnet0", kind: kindTap}},
		"bridge gone":     {link: f.links[a], deleted: true},
		"bridge not one":  {link: &link{index: a, name: "br0", kind: "dummy"}},
	} {
		c, err := f.Apply(Batch{events: []event{ev}})
		must(t, err)
		f.check()
		if _, ok := f.FDB[key]; ok || !c.Topology {
			t.Errorf("%s: entry is there: %v, change %+v", name, ok, c)
		}
		if c, err = f.Resync(); err != nil || !c.Topology || len(c.FDB) == 0 || f.FDB[key].Port != guest {
			t.Fatalf("%s: resync does not repair it: %+v, %v", name, c, err)
		}
	}
}
