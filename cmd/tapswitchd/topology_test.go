package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// ping checks that two nodes reach each other.
func ping(t *testing.T, from, to *lab.Node) {
	t.Helper()
	pingAddr(t, from, addr4(t, to))
}

func addr4(t *testing.T, n *lab.Node) netip.Addr {
	t.Helper()
	addr, err := n.Addr(false)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func pingAddr(t *testing.T, from *lab.Node, to netip.Addr) {
	t.Helper()
	if err := lab.Ping(within(t, 10*time.Second), from, to, 3); err != nil {
		t.Errorf("%s to %s: %v", from.Name(), to, err)
	}
}

// checkFast checks that two nodes reach each other by the fast path, from a port
// to another.
func (h *host) checkFast(t *testing.T, from, to *lab.Node, port, back string) {
	t.Helper()
	h.checkFastTo(t, from, addr4(t, to), port, back)
}

func (h *host) checkFastTo(t *testing.T, from *lab.Node, to netip.Addr, port, back string) {
	t.Helper()
	// The first ones find the way, and the daemon follows the bridge in its own
	// time.
	there, andBack := h.count(t, port, vswitch.Redirected), h.count(t, back, vswitch.Redirected)
	for began := time.Now(); h.count(t, port, vswitch.Redirected) == there || h.count(t, back, vswitch.Redirected) == andBack; {
		if time.Since(began) > 5*time.Second {
			t.Errorf("nothing is redirected: %v, %v", h.verdicts(t, port), h.verdicts(t, back))
			return
		}
		pingAddr(t, from, to)
	}
	before := h.count(t, port, vswitch.Redirected)
	beforeBack := h.count(t, back, vswitch.Redirected)
	pingAddr(t, from, to)
	if n := h.count(t, port, vswitch.Redirected) - before; n < 3 {
		t.Errorf("%d of 3 requests from %s were redirected: %v", n, port, h.verdicts(t, port))
	}
	if n := h.count(t, back, vswitch.Redirected) - beforeBack; n < 3 {
		t.Errorf("%d of 3 answers from %s were redirected: %v", n, back, h.verdicts(t, back))
	}
}

// checkSlow checks that two nodes reach each other, but not by the fast path.
func (h *host) checkSlow(t *testing.T, from, to *lab.Node, port string) {
	t.Helper()
	before := h.count(t, port, vswitch.Redirected)
	ping(t, from, to)
	if n := h.count(t, port, vswitch.Redirected) - before; n > 0 {
		t.Errorf("%d frames from %s were redirected, which is held back", n, port)
	}
}

// A port is held back and released as its settings change, and frames find their
// way all the while.
func TestTopologySettings(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{})
	g := h.Guests[0]
	for _, tt := range []struct {
		name     string
		do, undo func()
		port     string
		reason   string
		cut      bool // the bridge carries nothing meanwhile
	}{
		{
			name: "suppressed neighbours", port: g.Port, reason: "neigh_suppress=on",
			do:   func() { h.bridge(t, "link set dev vnet0 neigh_suppress on") },
			undo: func() { h.bridge(t, "link set dev vnet0 neigh_suppress off") },
		}, {
			// Without a spanning tree the kernel takes back any other state.
			name: "spanning tree", port: g.Port, reason: "spanning tree has the port disabled", cut: true,
			do:   func() { h.bridge(t, "link set dev vnet0 state 0") },
			undo: func() { h.bridge(t, "link set dev vnet0 state 3") },
		}, {
			name: "guest's port down", port: g.Port, reason: "the port is down", cut: true,
			do:   func() { h.ip(t, "link set vnet0 down") },
			undo: func() { h.ip(t, "link set vnet0 up") },
		}, {
			name: "uplink down", port: lab.NIC, reason: "the port is down", cut: true,
			do:   func() { h.ip(t, "link set nic0 down") },
			undo: func() { h.ip(t, "link set nic0 up") },
		}, {
			name: "bridge down", port: g.Port, reason: "bridge br0 is down", cut: true,
			do:   func() { h.ip(t, "link set br0 down") },
			undo: func() { h.ip(t, "link set br0 up") },
		},
	} {
		h.checkFast(t, h.Wire, g.Node, lab.NIC, g.Port)
		tt.do()
		h.awaitPort(t, 5*time.Second, tt.port, control.StateHeld, tt.reason)
		h.checkConsistent(t)
		if !tt.cut {
			h.checkSlow(t, h.Wire, g.Node, lab.NIC)
			h.checkSlow(t, g.Node, h.Wire, g.Port)
		}
		tt.undo()
		h.awaitFast(t, lab.NIC, "vnet0", "vnet1")
		h.checkConsistent(t)
		if t.Failed() {
			t.Fatalf("after %s", tt.name)
		}
	}
	h.checkFast(t, h.Wire, g.Node, lab.NIC, g.Port)
}

// A tap goes under traffic, and another comes back under its name.
func TestTopologyTapComesBack(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{})
	g, other := h.Guests[0], h.Guests[1]
	through := stream(t, h.Wire, other.Node, lab.StreamOptions{Rate: 1000})
	out := stream(t, other.Node, h.Wire, lab.StreamOptions{Rate: 1000})
	for range 3 {
		into := stream(t, h.Wire, g.Node, lab.StreamOptions{Rate: 5000, Grace: time.Millisecond})
		from := stream(t, g.Node, h.Wire, lab.StreamOptions{Rate: 5000, Grace: time.Millisecond})
		h.awaitRedirects(t, lab.NIC, into)
		h.awaitRedirects(t, g.Port, from)
		gone := g.PortIfindex()
		if err := h.RemoveGuest(g); err != nil {
			t.Fatal(err)
		}
		h.await(t, 5*time.Second, "the daemon knows that vnet0 is gone", func() bool { return h.port(t, "vnet0").Name == "" })
		h.checkConsistent(t)
		into.Stop()
		from.Stop()
		var err error
		if g, err = h.AddGuest(lab.GuestOptions{}); err != nil {
			t.Fatal(err)
		}
		h.awaitFast(t, "vnet0")
		if p := h.port(t, "vnet0"); p.Ifindex == gone || p.Ifindex != g.PortIfindex() {
			t.Errorf("vnet0 is device %d, want the new %d", p.Ifindex, g.PortIfindex())
		}
		if n := h.count(t, "vnet0", vswitch.Redirected); n > 0 {
			t.Errorf("the new vnet0 has inherited %d redirected frames", n)
		}
		h.checkFast(t, h.Wire, g.Node, lab.NIC, "vnet0")
		h.checkConsistent(t)
	}
	whole(t, "wire to the other guest", through)
	whole(t, "other guest to wire", out)
}

// A guest is moved to another bridge and back, and its frames with it.
func TestTopologyTapMoves(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 3}, lab.DaemonOptions{})
	a, b, stays := h.Guests[0], h.Guests[1], h.Guests[2]
	h.ip(t, "link add br1 type bridge forward_delay 0")
	h.ip(t, "link set br1 up")
	inBridge := func(port, bridge string) {
		h.await(t, 5*time.Second, port+" is fast in "+bridge, func() bool {
			p := h.port(t, port)
			return p.Bridge == bridge && p.State == control.StateFast
		})
	}
	h.checkFast(t, h.Wire, a.Node, lab.NIC, a.Port)
	h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
	h.ip(t, "link set vnet0 master br1")
	inBridge("vnet0", "br1")
	h.checkConsistent(t)
	if err := lab.Ping(within(t, 300*time.Millisecond), h.Wire, a.Addr4, 1); err == nil {
		t.Error("the wire reaches a guest that is on another bridge")
	}
	h.ip(t, "link set vnet1 master br1")
	inBridge("vnet1", "br1")
	h.checkConsistent(t)
	h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
	h.checkFast(t, h.Wire, stays.Node, lab.NIC, stays.Port)
	h.ip(t, "link set vnet0 nomaster")
	h.ip(t, "link set vnet0 master br0")
	inBridge("vnet0", "br0")
	h.checkConsistent(t)
	h.checkFast(t, h.Wire, a.Node, lab.NIC, a.Port)
	h.ip(t, "link set vnet1 master br0")
	inBridge("vnet1", "br0")
	// The daemon may hear of both halves of a move at once.
	for _, bridge := range []string{"br1", "br0"} {
		h.suspend(t)
		h.ip(t, "link set vnet0 master "+bridge)
		h.ip(t, "link set vnet1 master "+bridge)
		h.resume()
		inBridge("vnet0", bridge)
		inBridge("vnet1", bridge)
		h.checkConsistent(t)
		h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
	}
	h.ip(t, "link del br1")
	h.checkConsistent(t)
	h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
}

// As 'virsh net-destroy' and 'net-start' do under running guests.
func TestTopologyBridgeComesBack(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2, NoHostAddr: true}, lab.DaemonOptions{})
	a, b := h.Guests[0], h.Guests[1]
	for range 3 {
		h.checkFast(t, h.Wire, a.Node, lab.NIC, a.Port)
		h.ip(t, "link del br0")
		h.await(t, 5*time.Second, "the daemon has no ports", func() bool {
			ports, err := h.api.Ports(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(ports) == 0
		})
		h.checkConsistent(t)
		h.ip(t, "link add br0 type bridge forward_delay 0")
		h.ip(t, "link set br0 up")
		for _, port := range []string{lab.NIC, a.Port, b.Port} {
			h.ip(t, "link set "+port+" master br0")
		}
		h.awaitFast(t, lab.NIC, a.Port, b.Port)
		h.checkConsistent(t)
		h.checkFast(t, h.Wire, a.Node, lab.NIC, a.Port)
		h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
	}
}

// A persistent tap without its guest takes no frames, so none are sent there.
func TestTopologyTapWithoutReader(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	for range 3 {
		tap, err := lab.OpenTap(h.Host, "vnet9", lab.TapOptions{Persist: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Plug("vnet9"); err != nil {
			t.Fatal(err)
		}
		h.awaitFast(t, "vnet9")
		h.checkConsistent(t)
		if err := tap.Close(); err != nil {
			t.Fatal(err)
		}
		h.awaitPort(t, 5*time.Second, "vnet9", control.StateHeld, "no carrier")
		h.checkConsistent(t)
	}
	h.checkFast(t, h.Wire, h.Guests[0].Node, lab.NIC, "vnet0")
}
