package bridge

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// TestCarriers follows a bond and VLAN devices by the kernel's messages, with a port
// on top of each.
func TestCarriers(t *testing.T) {
	m := blank(Options{})
	u32 := func(typ, v int) []byte { return appendAttribute(nil, typ, native.AppendUint32(nil, uint32(v))) }
	port := linkInfo("", kindBridge, appendAttribute(nil, nl.IFLA_BRPORT_STATE, []byte{3}))
	master := func(v int) []byte { return u32(unix.IFLA_MASTER, v) }
	bonded := func(kind string, state byte) []byte {
		return linkInfo(kind, kindBond, appendAttribute(nil, unix.IFLA_BOND_SLAVE_STATE, []byte{state}))
	}
	const active, backup = 0, 1
	vlan := func(tpid []byte, id uint16, more ...[]byte) []byte {
		data := append(appendAttribute(nil, unix.IFLA_VLAN_ID, native.AppendUint16(nil, id)), appendAttribute(nil, unix.IFLA_VLAN_PROTOCOL, tpid)...)
		info := append(appendAttribute(nil, nl.IFLA_INFO_KIND, []byte("vlan\x00")), appendAttribute(nil, nl.IFLA_INFO_DATA|unix.NLA_F_NESTED, data)...)
		info = append(info, appendAttribute(nil, nl.IFLA_INFO_SLAVE_KIND, []byte("bridge\x00"))...)
		info = append(info, appendAttribute(nil, nl.IFLA_INFO_SLAVE_DATA|unix.NLA_F_NESTED, appendAttribute(nil, nl.IFLA_BRPORT_STATE, []byte{3}))...)
		b := appendAttribute(nil, unix.IFLA_LINKINFO|unix.NLA_F_NESTED, info)
		for _, m := range more {
			b = append(b, m...)
		}
		return b
	}
	q, ad := []byte{0x81, 0}, []byte{0x88, 0xa8}
	hear := func(deleted bool, msg []byte) Change {
		t.Helper()
		family, l, ok := parseLink(msg)
		if !ok {
			t.Fatalf("message %x is not understood", msg)
		}
		var c Change
		m.applyLink(family, deleted, l, &c)
		return c
	}
	parent := appendAttribute(nil, unix.IFLA_PARENT_DEV_NAME, []byte("0000:01:00.0\x00"))
	for _, msg := range [][]byte{
		linkMessage(1, "br0", linkInfo(kindBridge, "", nil)),
		linkMessage(3, "bond0", master(1), linkInfo(kindBond, kindBridge, appendAttribute(nil, nl.IFLA_BRPORT_STATE, []byte{3}))),
		linkMessage(4, "eth1", parent, master(3), bonded("", backup)),
		linkMessage(5, "bond0.7", u32(unix.IFLA_LINK, 3), master(1), vlan(q, 7)),
		linkMessage(6, "eth2", parent),
		linkMessage(7, "eth2.8", u32(unix.IFLA_LINK, 6), master(1), vlan(ad, 8)),
		linkMessage(8, "eth2.8.9", u32(unix.IFLA_LINK, 7), master(1), vlan(q, 9)),
		linkMessage(9, "eth3", parent, master(1), port),
		linkMessage(10, "eth1.5", u32(unix.IFLA_LINK, 4)),
	} {
		hear(false, msg)
	}
	const bond, bondVLAN, nicVLAN, nested, nic, guestless = 3, 5, 7, 8, 9, 6
	carrier := func(ifindex int, tpid uint16, v vswitch.VLAN, members ...int) vswitch.Carrier {
		c := vswitch.Carrier{Ifindex: ifindex, TPID: tpid, VLAN: v}
		copy(c.Members[:], members)
		return c
	}
	check := func(what string, want map[int]vswitch.Carrier) {
		t.Helper()
		for ifindex, c := range want {
			if got := m.Ports[ifindex].Carrier; got != c {
				t.Errorf("%s: port %s is carried by %+v, want %+v", what, m.Ports[ifindex].Name, got, c)
			}
		}
	}
	check("no device is active", map[int]vswitch.Carrier{
		bond: {}, bondVLAN: carrier(3, 0x8100, 7), nicVLAN: carrier(guestless, 0x88a8, 8, guestless), nested: {}, nic: {},
	})
	expect := func(what string, msg []byte, members ...int) {
		t.Helper()
		if c := hear(false, msg); !c.Topology {
			t.Errorf("%s: no change was told", what)
		}
		want := carrier(3, 0, 0, members...)
		if len(members) == 0 {
			want = vswitch.Carrier{}
		}
		check(what, map[int]vswitch.Carrier{bond: want, bondVLAN: carrier(3, 0x8100, 7, members...)})
	}
	expect("one is active", linkMessage(4, "eth1", parent, master(3), bonded("", active)), 4)
	expect("one more", linkMessage(2, "eth0", parent, master(3), bonded("", active)), 2, 4)
	expect("it fails over", linkMessage(4, "eth1", parent, master(3), bonded("", backup)), 2)
	expect("and back", linkMessage(4, "eth1", parent, master(3), bonded("", active)), 2, 4)
	down := linkMessage(2, "eth0", parent, master(3), bonded("", active))
	native.PutUint32(down[8:], unix.IFF_UP)
	expect("one loses its carrier", down, 4)
	expect("a VLAN device takes frames before the bond", linkMessage(10, "eth1.5", u32(unix.IFLA_LINK, 4), linkInfo(kindVLAN, "", nil)))
	hear(true, linkMessage(10, "eth1.5", u32(unix.IFLA_LINK, 4), linkInfo(kindVLAN, "", nil)))
	check("it has gone", map[int]vswitch.Carrier{bond: carrier(3, 0, 0, 4)})
	expect("one leaves the bond", linkMessage(4, "eth1", parent))
	expect("a veth joins", linkMessage(11, "veth0", master(3), bonded(kindVeth, active), u32(unix.IFLA_MTU, 9000)), 11)
	for _, ifindex := range []int{bond, bondVLAN} {
		if got := m.Ports[ifindex].VethMTU; got != 9000 {
			t.Errorf("port %d meets veths with an MTU of %d, want 9000", ifindex, got)
		}
	}

	// A VLAN device on what a bond has is the bond's no more than XDP's.
	hear(false, linkMessage(guestless, "eth2", parent, master(3), bonded("", active)))
	check("a NIC with a VLAN device joins a bond", map[int]vswitch.Carrier{nicVLAN: {}, bond: carrier(3, 0, 0, 11)})
}

// A macvlan on a bridge has it listen to every frame, while it is up, and no message says
// so.
func TestMacvlanOnBridge(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := addBridge(t, "br0")
	f.sync()
	upper := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "upper", ParentIndex: br}, Mode: netlink.MACVLAN_MODE_BRIDGE}
	must(t, netlink.LinkAdd(upper))
	f.sync()
	held := func() bool {
		h := f.Holds()[br]
		return len(h) == 1 && strings.Contains(h[0].Text, "bridge br0 is promiscuous for upper,")
	}
	if held() {
		t.Error("the bridge is held for a device that is down")
	}
	must(t, netlink.LinkSetUp(upper))
	f.wait("it holds the bridge", held)
	must(t, netlink.LinkSetDown(upper))
	f.wait("down it lets it go", func() bool { return len(f.Holds()) == 0 })
	must(t, netlink.LinkSetUp(upper))
	f.wait("it holds the bridge again", held)
	must(t, netlink.LinkDel(upper))
	f.wait("gone it lets it go", func() bool { return len(f.Holds()) == 0 })
	f.wantFresh()
}
