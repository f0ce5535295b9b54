package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
)

func testLab(t *testing.T, opts Options) *Lab {
	t.Helper()
	l, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestLabEverybodyReachesEverybody(t *testing.T) {
	for name, opts := range map[string]Options{
		"default":        {Guests: 2},
		"no offloads":    {Guests: 2, Guest: GuestOptions{NoOffloads: true}, NoBridgeNetfilter: true},
		"wire offloads":  {Guests: 2, WireOffloads: true},
		"jumbo and IPv6": {Guests: 2, MTU: 9000, HostIPv6: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLab(t, opts)
			nodes := []*Node{l.Wire, l.Host, l.Guests[0].Node, l.Guests[1].Node}
			to := []netip.Addr{
				WireAddr4, HostAddr4, l.Guests[0].Addr4, l.Guests[1].Addr4,
				WireAddr6, HostAddr6, l.Guests[0].Addr6, l.Guests[1].Addr6,
			}
			for i, g := range l.Guests {
				v4, v6 := GuestAddrs(i)
				if g.MAC.String() != GuestMAC(i).String() || g.Addr4 != v4 || g.Addr6 != v6 {
					t.Errorf("%s has %v, %v and %v, want %v, %v and %v", g.Name(), g.MAC, g.Addr4, g.Addr6, GuestMAC(i), v4, v6)
				}
			}
			for _, from := range nodes {
				for _, addr := range to {
					if err := Ping(testContext(t), from, addr, 2); err != nil {
						t.Error(err)
					}
				}
			}
			// Some of it went through the relay of each guest, in both directions.
			for _, g := range l.Guests {
				if g.ToGuest().Frames < 20 || g.ToHost().Frames < 20 {
					t.Errorf("%s: relay carried %+v and %+v", g.Name(), g.ToGuest(), g.ToHost())
				}
			}
		})
	}
}

func TestLabOptions(t *testing.T) {
	l := testLab(t, Options{Guests: 1, MTU: 1400, AgeingTime: 5 * time.Second, NoHostAddr: true, NoBridgeNetfilter: true})
	link, err := l.Host.Link(BridgeDev)
	if err != nil {
		t.Fatal(err)
	}
	bridge := link.(*netlink.Bridge)
	if bridge.AgeingTime == nil || *bridge.AgeingTime != 500 {
		t.Errorf("ageing time is %v, want 500 ticks", bridge.AgeingTime)
	}
	if got := bridge.HardwareAddr.String(); got != NICMAC.String() {
		t.Errorf("the bridge's MAC is %v, want the NIC's", got)
	}
	for _, d := range []struct {
		n   *Node
		dev string
	}{{l.Wire, WireDev}, {l.Host, NIC}, {l.Host, BridgeDev}, {l.Host, "vnet0"}, {l.Guests[0].Node, "eth0"}} {
		link, err := d.n.Link(d.dev)
		if err != nil {
			t.Fatal(err)
		}
		if link.Attrs().MTU != 1400 {
			t.Errorf("%s has MTU %d, want 1400", d.dev, link.Attrs().MTU)
		}
	}
	if _, err := l.Host.Addr(false); err == nil {
		t.Error("the host has an IPv4 address")
	}
	if _, err := l.Host.Addr(true); err == nil {
		t.Error("the host has an IPv6 address")
	}
	if v, err := l.Host.Sysctl("net/bridge/bridge-nf-call-iptables"); !errors.Is(err, os.ErrNotExist) && v != "0" {
		t.Errorf("bridge-nf-call-iptables is %q (%v), want 0", v, err)
	}
}

func TestLabVLANFiltering(t *testing.T) {
	l, err := New(Options{Guests: 1, VLANFiltering: true})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("SKIPPED: this kernel has no CONFIG_BRIDGE_VLAN_FILTERING")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	link, err := l.Host.Link(BridgeDev)
	if err != nil {
		t.Fatal(err)
	}
	if on := link.(*netlink.Bridge).VlanFiltering; on == nil || !*on {
		t.Error("VLAN filtering is off")
	}
	if err := Ping(testContext(t), l.Wire, l.Guests[0].Addr4, 1); err != nil {
		t.Error(err)
	}
}

func TestLabRemovesAndReusesGuests(t *testing.T) {
	l := testLab(t, Options{Guests: 3})
	ctx := testContext(t)
	g := l.Guests[1]
	if err := l.RemoveGuest(g); err != nil {
		t.Fatal(err)
	}
	if err := l.Host.WaitGone(ctx, g.PortIfindex()); err != nil {
		t.Error(err)
	}
	if err := l.RemoveGuest(g); err == nil {
		t.Error("a guest was removed twice")
	}
	again, err := l.AddGuest(GuestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again.Port != g.Port || again.Addr4 != g.Addr4 || again.MAC.String() != g.MAC.String() {
		t.Errorf("new guest is %s %v %v, want the removed one's", again.Port, again.Addr4, again.MAC)
	}
	if again.PortIfindex() == g.PortIfindex() {
		t.Error("an ifindex came back")
	}
	for _, to := range []netip.Addr{again.Addr4, again.Addr6} {
		if err := Ping(ctx, l.Wire, to, 1); err != nil {
			t.Error(err)
		}
	}
}

func TestLabLeavesNothing(t *testing.T) {
	// Once before, for what the process opens once and keeps.
	testLab(t, Options{}).Close()
	ignore := goleak.IgnoreCurrent()
	before := openFiles(t)
	l, err := New(Options{Guests: 2})
	if err != nil {
		t.Fatal(err)
	}
	g := l.Guests[0]
	ctx := testContext(t)
	if err := Ping(ctx, l.Wire, g.Addr6, 1); err != nil {
		t.Error(err)
	}
	p, err := OpenPacket(l.Wire, WireDev)
	if err != nil {
		t.Fatal(err)
	}
	s, err := StartStream(l.Wire, g.Node, StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Fetch(ctx, l.Wire, g.Node, g.Addr4, 1<<20); err != nil {
		t.Error(err)
	}
	if err := l.Wire.Command(ctx, "true").Run(); err != nil {
		t.Error(err)
	}
	s.Stop()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
	goleak.VerifyNone(t, ignore)
}

func TestLabFailedLeavesNothing(t *testing.T) {
	testLab(t, Options{}).Close()
	ignore := goleak.IgnoreCurrent()
	before := openFiles(t)
	for name, opts := range map[string]Options{
		"MTU that no device takes": {MTU: 100000},
		"bad guests":               {Guests: 2, Guest: GuestOptions{MTU: 100000}},
	} {
		if l, err := New(opts); err == nil {
			l.Close()
			t.Errorf("%s: no error", name)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
	goleak.VerifyNone(t, ignore)
}

func TestPingFails(t *testing.T) {
	l := testLab(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	nobody := netip.MustParseAddr("198.18.0.99")
	if err := Ping(ctx, l.Wire, nobody, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("pinging nobody: %v, want the context's error", err)
	}
	if err := Ping(t.Context(), l.Wire, netip.MustParseAddr("192.0.2.1"), 1); err == nil {
		t.Error("pinging where no route leads: no error")
	}
}
