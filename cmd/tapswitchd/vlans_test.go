package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// newTrunk builds a host with a VLAN-aware bridge, whose uplink carries VLAN 1 without
// a tag, in which the wire has its IPv6 address, and 10 and 20 with one; the wire's
// IPv4 address is in VLAN 10. The first guest is in VLAN 10, the others in 1.
func newTrunk(t *testing.T, guests int) *host {
	t.Helper()
	h := newLab(t, lab.Options{Guests: guests, VLANFiltering: true})
	for _, args := range []string{
		"-4 addr flush dev " + lab.WireDev,
		"link add link " + lab.WireDev + " name wire.10 type vlan id 10",
	} {
		if out, err := h.Wire.Command(t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
	if err := h.Wire.AddAddr("wire.10", netip.PrefixFrom(lab.WireAddr4, 24)); err != nil {
		t.Fatal(err)
	}
	if err := h.Wire.SetUp("wire.10"); err != nil {
		t.Fatal(err)
	}
	h.bridge(t, "vlan add dev nic0 vid 10")
	h.bridge(t, "vlan add dev nic0 vid 20")
	h.bridge(t, "vlan del dev vnet0 vid 1")
	h.bridge(t, "vlan add dev vnet0 vid 10 pvid untagged")
	h.start(t, lab.DaemonOptions{})
	return h
}

// awaitStopped waits until echo requests from a port are left to the bridge, which
// drops them.
func (h *host) awaitStopped(t *testing.T, from *lab.Node, to netip.Addr, port string) {
	t.Helper()
	eventually(t, 10*time.Second, fmt.Sprintf("frames from %s to %s are stopped", from.Name(), to), func() bool {
		before := h.verdicts(t, port)
		err := lab.Ping(within(t, 100*time.Millisecond), from, to, 1)
		after := h.verdicts(t, port)
		return err != nil && after[vswitch.Redirected] == before[vswitch.Redirected] && !maps.Equal(after, before)
	})
}

func TestVLANs(t *testing.T) {
	h := newTrunk(t, 3)
	a, b, c := h.Guests[0], h.Guests[1], h.Guests[2]
	h.checkFast(t, h.Wire, a.Node, lab.NIC, a.Port)
	h.checkFastTo(t, h.Wire, b.Addr6, lab.NIC, b.Port)
	h.checkFast(t, b.Node, c.Node, b.Port, c.Port)
	h.checkConsistent(t)
	for _, way := range []struct {
		client, server *lab.Node
		addr           netip.Addr
	}{
		{h.Wire, a.Node, a.Addr4},
		{a.Node, h.Wire, lab.WireAddr4},
		{h.Wire, b.Node, b.Addr6},
		{b.Node, h.Wire, lab.WireAddr6},
	} {
		before := h.count(t, a.Port, vswitch.Redirected) + h.count(t, b.Port, vswitch.Redirected)
		if _, err := lab.Fetch(within(t, time.Minute), way.client, way.server, way.addr, transferSize(10<<20)); err != nil {
			t.Error(err)
		}
		if n := h.count(t, a.Port, vswitch.Redirected) + h.count(t, b.Port, vswitch.Redirected) - before; n < 10 {
			t.Errorf("%s from %s: %d of the guest's frames were redirected, want 10 at least", way.client.Name(), way.addr, n)
		}
	}
	// Between guests of different VLANs there is no way, and a station of another
	// VLAN is not known.
	for _, pair := range [][2]*lab.Guest{{a, b}, {b, a}} {
		if err := lab.Ping(within(t, 300*time.Millisecond), pair[0].Node, pair[1].Addr4, 1); err == nil {
			t.Errorf("%s reaches %s, which is in another VLAN", pair[0].Name(), pair[1].Name())
		}
	}
}

// The bridge's VLANs change, and the fast path's with them.
func TestVLANsChange(t *testing.T) {
	h := newTrunk(t, 2)
	a, b := h.Guests[0], h.Guests[1]
	tagged := func() { t.Helper(); h.checkFast(t, h.Wire, a.Node, lab.NIC, a.Port) }
	untagged := func(g *lab.Guest) { t.Helper(); h.checkFastTo(t, h.Wire, g.Addr6, lab.NIC, g.Port) }
	tagged()
	untagged(b)

	h.bridge(t, "vlan del dev nic0 vid 10")
	h.awaitStopped(t, h.Wire, a.Addr4, lab.NIC)
	h.awaitStopped(t, a.Node, lab.WireAddr4, a.Port)
	untagged(b)
	h.bridge(t, "vlan add dev nic0 vid 10")
	tagged()
	h.bridge(t, "vlan del dev vnet0 vid 10")
	h.awaitStopped(t, h.Wire, a.Addr4, lab.NIC)
	h.bridge(t, "vlan add dev vnet0 vid 10 pvid untagged")
	tagged()
	h.checkConsistent(t)

	// The guest gets tags that it does not understand, though not those of its PVID.
	h.bridge(t, "vlan add dev vnet0 vid 10 pvid")
	eventually(t, 10*time.Second, "the guest gets tagged frames", func() bool {
		return lab.Ping(within(t, 100*time.Millisecond), h.Wire, a.Addr4, 1) != nil
	})
	h.bridge(t, "vlan add dev vnet0 vid 10 pvid untagged")
	tagged()

	// Without VLANs the guest of VLAN 10 is where the untagged frames are.
	h.ip(t, "link set br0 type bridge vlan_filtering 0")
	untagged(a)
	untagged(b)
	h.checkConsistent(t)
	if err := lab.Ping(within(t, 300*time.Millisecond), h.Wire, a.Addr4, 1); err == nil {
		t.Error("the guest understands tags")
	}
	h.ip(t, "link set br0 type bridge vlan_filtering 1")
	h.awaitStopped(t, h.Wire, a.Addr6, lab.NIC)
	tagged()
	untagged(b)

	// All ports that have it change their PVID with the bridge.
	h.ip(t, "link set br0 type bridge vlan_default_pvid 30")
	untagged(b)
	tagged()
	h.checkConsistent(t)
	entries, err := h.api.FDB(t.Context(), control.FDBFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(entries, func(e control.FDBEntry) bool { return e.VLAN == 30 && e.Port == b.Port && e.Fast }) {
		t.Errorf("no entry of %s is in VLAN 30: %+v", b.Port, entries)
	}
}

// A change of VLANs is in force in a moment: it takes not much longer than one of the
// bridge's table, of which no more is to be read than the kernel's message.
func TestLatencyOfVLANs(t *testing.T) {
	h := newHost(t, lab.Options{VLANFiltering: true}, lab.DaemonOptions{})
	p := newFork(t, h, stationMAC(1))
	// The station is behind one tap in VLAN 10, behind the other in 20; in 30 it moves.
	h.bridge(t, "vlan add dev vnet0 vid 10 untagged")
	h.bridge(t, "vlan add dev vnet1 vid 20 untagged")
	for _, dev := range []string{"vnet0", "vnet1"} {
		h.bridge(t, fmt.Sprintf("vlan add dev %s vid 30 untagged", dev))
	}
	for _, vlan := range []int{10, 20, 30} {
		h.bridge(t, fmt.Sprintf("vlan add dev nic0 vid %d", vlan))
		h.bridge(t, fmt.Sprintf("fdb add %s dev nic0 master static vlan %d", lab.WireMAC, vlan))
	}
	p.fix(t, 10, 0)
	p.fix(t, 20, 1)
	nic, err := h.Host.Link(lab.NIC)
	if err != nil {
		t.Fatal(err)
	}
	pvid := func(vlan int) {
		if err := h.Host.Netlink().BridgeVlanAdd(nic, uint16(vlan), true, true, false, true); err != nil {
			t.Fatal(err)
		}
	}
	changes := []struct {
		what  string
		begin func()
		lead  func(to int)
		took  []time.Duration
	}{
		{what: "the uplink's PVID", begin: func() {}, lead: func(to int) { pvid(10 + 10*to) }},
		{what: "the bridge's table", begin: func() { pvid(30) }, lead: func(to int) { p.fix(t, 30, to) }},
	}
	for range 5 { // in turns, as the machine may have other things to do
		for i := range changes {
			c := &changes[i]
			c.begin()
			c.lead(0)
			p.awaitRedirect(t)
			for round := range 10 {
				c.took = append(c.took, p.follow(t, c.lead, 1-round%2))
			}
			p.checkAllFast(t)
		}
	}
	var medians [2]time.Duration
	for i, c := range changes {
		slices.Sort(c.took)
		medians[i] = c.took[len(c.took)/2]
		t.Logf("to follow a change of %s takes %v (median of %d), most %v", c.what, medians[i], len(c.took), c.took[len(c.took)-1])
	}
	if medians[0] > 3*medians[1] {
		t.Errorf("to follow a change of %s takes %.1f times as long as one of %s, want 3 at most",
			changes[0].what, float64(medians[0])/float64(medians[1]), changes[1].what)
	}
}
