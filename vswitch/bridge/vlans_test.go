package bridge

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// awareBridge makes a VLAN-aware bridge, whose ports get VLAN 1, or skips the test.
func awareBridge(t *testing.T, name string) int {
	t.Helper()
	br := addLink(t, &netlink.Bridge{LinkAttrs: attrs(name)})
	if !hasVLANFiltering(t, br) {
		t.Skip("SKIPPED: this kernel's bridge has no VLAN filtering")
	}
	return br
}

// wantVLANs waits until a port's VLANs are as wanted.
func (f *follower) wantVLANs(port int, want string) {
	f.t.Helper()
	f.wantPort(fmt.Sprintf("port %d has the VLANs %q", port, want), port, func(p vswitch.Port) bool {
		return p.VLANs == nil && want == "" || p.VLANs != nil && p.VLANs.String() == want
	})
}

func TestVLANs(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br, other := awareBridge(t, "br0"), awareBridge(t, "br1")
	f.wait("the bridge is VLAN-aware", func() bool {
		b := f.Bridges[br]
		return b.VLANFiltering && b.VLANProtocol == unix.ETH_P_8021Q
	})
	guest := addTap(t, "vnet0").index
	enslave(t, guest, br)
	f.wantVLANs(guest, "1 pvid untagged")
	link := byIndex(t, guest)
	must(t, netlink.BridgeVlanAddRange(link, 10, 19, false, false, false, true))
	f.wantVLANs(guest, "1 pvid untagged, 10-19")
	must(t, netlink.BridgeVlanAdd(link, 15, true, true, false, true))
	f.wantVLANs(guest, "1 untagged, 10-14, 15 pvid untagged, 16-19")
	must(t, netlink.BridgeVlanAdd(link, 15, false, false, false, true))
	f.wantVLANs(guest, "1 untagged, 10-19")
	must(t, netlink.BridgeVlanDelRange(link, 12, 17, false, false, false, true))
	f.wantVLANs(guest, "1 untagged, 10-11, 18-19")
	must(t, netlink.BridgeVlanDel(link, 1, false, false, false, true))
	f.wantVLANs(guest, "10-11, 18-19")
	f.wantFresh()

	// Ports that have no PVID get the bridge's new one.
	setBridge16(t, br, nl.IFLA_BR_VLAN_DEFAULT_PVID, 77)
	f.wantFresh()
	second := addTap(t, "vnet1").index
	enslave(t, second, br)
	f.wantVLANs(second, "77 pvid untagged")
	setBridge16(t, br, nl.IFLA_BR_VLAN_DEFAULT_PVID, 0)
	f.wantVLANs(second, "")
	f.wantFresh()

	must(t, netlink.BridgeVlanAdd(link, 4094, true, true, false, true))
	f.wantVLANs(guest, f.Ports[guest].VLANs.String())
	enslave(t, guest, other)
	f.wantPort("the tap is on the other bridge", guest, func(p vswitch.Port) bool { return p.Bridge == other })
	f.wantVLANs(guest, "1 pvid untagged")
	must(t, netlink.LinkSetNoMaster(link))
	f.wait("the tap is on no bridge", func() bool { _, there := f.Ports[guest]; return !there })
	f.wait("its VLANs are gone", func() bool { return f.vlans[guest] == nil })
	setVLANFiltering(t, br, 0)
	f.wait("the bridge is not VLAN-aware", func() bool { return !f.Bridges[br].VLANFiltering })
	f.wantFresh()
}

// A change of the tags' protocol is heard of.
func TestVLANProtocol(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := awareBridge(t, "br0")
	for _, tpid := range []uint16{unix.ETH_P_8021AD, unix.ETH_P_8021Q} {
		setVLANFiltering(t, br, 0)
		setBridge16(t, br, nl.IFLA_BR_VLAN_PROTOCOL, tpid>>8|tpid<<8)
		setVLANFiltering(t, br, 1)
		f.wait(fmt.Sprintf("the bridge has tags of %#x", tpid), func() bool {
			return f.Bridges[br].VLANFiltering && f.Bridges[br].VLANProtocol == tpid
		})
	}
}

// TestRandomVLANs changes VLANs at random, and holds the mirror against a fresh one.
func TestRandomVLANs(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := awareBridge(t, "br0")
	var ports []netlink.Link
	for i := range 3 {
		p := addTap(t, fmt.Sprintf("vnet%d", i)).index
		enslave(t, p, br)
		ports = append(ports, byIndex(t, p))
	}
	must(t, netlink.BridgeVlanAdd(ports[0], 2, false, true, false, true))
	const both = "1 pvid untagged, 2 untagged"
	f.wantVLANs(ports[0].Attrs().Index, both)
	if told := fresh(t, f.options).Ports[ports[0].Attrs().Index].VLANs.String(); told != both {
		t.Skipf("SKIPPED: this kernel leaves VLANs out when asked for all: of %q it tells %q", both, told)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	vlan := func() uint16 { return 1 + uint16(r.IntN(30)) }
	for range 300 {
		p, first := ports[r.IntN(len(ports))], vlan()
		last := first + 1 + uint16(r.IntN(3)) // the kernel refuses a range of one
		untagged := r.IntN(2) == 0
		switch r.IntN(8) {
		case 0, 1, 2:
			must(t, netlink.BridgeVlanAddRange(p, first, last, false, untagged, false, true))
		case 3, 4:
			must(t, netlink.BridgeVlanAdd(p, first, true, untagged, false, true))
		case 5, 6:
			err := netlink.BridgeVlanDelRange(p, first, last, false, false, false, true)
			if err != nil && err != unix.ENOENT && err != unix.EINVAL {
				t.Fatal(err)
			}
		case 7:
			setBridge16(t, br, nl.IFLA_BR_VLAN_DEFAULT_PVID, vlan())
		}
	}
	f.wantFresh()
}

// A device on top of another takes its VLAN's frames.
func TestTakenVLANs(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{Uplinks: []string{"wire"}})
	br, wire := addBridge(t, "br0"), addVeth(t, "wire")
	enslave(t, wire, br)
	taken := func(want string) {
		t.Helper()
		f.wantPort(fmt.Sprintf("the VLANs taken are %q", want), wire, func(p vswitch.Port) bool {
			return p.TakenVLANs == nil && want == "" || p.TakenVLANs != nil && p.TakenVLANs.String() == want
		})
	}
	taken("")
	add := func(name string, id int) netlink.Link {
		a := attrs(name)
		a.ParentIndex = wire
		l := &netlink.Vlan{LinkAttrs: a, VlanId: id}
		err := netlink.LinkAdd(l)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("SKIPPED: this kernel has no VLAN devices")
		}
		must(t, err)
		return l
	}
	add("wire.7", 7)
	taken("7")
	last := add("wire.9", 9)
	taken("7, 9")
	must(t, netlink.LinkDel(last))
	taken("7")
	f.wantFresh()
}
