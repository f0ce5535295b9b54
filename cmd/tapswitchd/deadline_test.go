package main

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// awaitExpiry waits until the frames of a stream into a guest, which have been
// redirected, go by the bridge: then the host's stack sees them on the NIC.
func (h *host) awaitExpiry(t *testing.T, to net.HardwareAddr) {
	t.Helper()
	p, err := lab.OpenPacket(h.Host, lab.NIC)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.Next(within(t, 10*time.Second), func(f []byte) bool { return bytes.Equal(f[:6], to) && len(f) > 100 })
	if err != nil {
		t.Fatal(err)
	}
}

// awaitRedirects waits until the stream that comes in by a port is fast.
func (h *host) awaitRedirects(t *testing.T, port string, s *lab.Stream) {
	t.Helper()
	ctx := within(t, 10*time.Second)
	for before := h.count(t, port, vswitch.Redirected); h.count(t, port, vswitch.Redirected) == before; {
		if err := s.WaitReceived(ctx, 50); err != nil {
			t.Fatalf("nothing from %s is redirected: %v", port, err)
		}
	}
}

// A daemon that hangs must not be the cause of anything but slower frames.
func TestDeadlineOfStoppedDaemon(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: shortLease})
	g := h.Guests[0]
	// A frame of its own accord may have come before the first renewal.
	early := h.count(t, lab.NIC, vswitch.PassExpired)
	down := stream(t, h.Wire, g.Node, lab.StreamOptions{Rate: 5000})
	up := stream(t, g.Node, h.Wire, lab.StreamOptions{Rate: 5000})
	h.awaitRedirects(t, lab.NIC, down)
	h.awaitRedirects(t, g.Port, up)
	if n := h.count(t, lab.NIC, vswitch.PassExpired) - early; n > 0 {
		t.Errorf("%d frames came past the deadline of a daemon that runs", n)
	}
	h.suspend(t)
	h.awaitExpiry(t, g.MAC)
	for _, s := range []*lab.Stream{down, up} {
		if err := s.WaitReceived(within(t, 10*time.Second), 1000); err != nil {
			t.Error(err)
		}
	}
	h.resume()
	h.awaitRedirects(t, lab.NIC, down)
	h.awaitRedirects(t, g.Port, up)
	for _, port := range []string{lab.NIC, g.Port} {
		if n := h.count(t, port, vswitch.PassExpired); n < 1000 {
			t.Errorf("%d frames from %s were passed for the deadline, want at least 1000", n, port)
		}
	}
	whole(t, "wire to guest", down)
	whole(t, "guest to wire", up)
}

// The same for a daemon that is gone, until another one comes.
func TestDeadlineOfKilledDaemon(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: shortLease})
	g := h.Guests[0]
	down := stream(t, h.Wire, g.Node, lab.StreamOptions{Rate: 5000})
	up := stream(t, g.Node, h.Wire, lab.StreamOptions{Rate: 5000})
	h.awaitRedirects(t, lab.NIC, down)
	h.awaitRedirects(t, g.Port, up)
	h.kill(t)
	h.awaitExpiry(t, g.MAC)
	for _, s := range []*lab.Stream{down, up} {
		if err := s.WaitReceived(within(t, 10*time.Second), 1000); err != nil {
			t.Error(err)
		}
	}
	h.start(t, lab.DaemonOptions{Config: shortLease})
	h.awaitRedirects(t, lab.NIC, down)
	h.awaitRedirects(t, g.Port, up)
	for _, port := range []string{lab.NIC, g.Port} {
		if n := h.count(t, port, vswitch.PassExpired); n < 1000 {
			t.Errorf("%d frames from %s were passed for the deadline, want at least 1000", n, port)
		}
	}
	whole(t, "wire to guest", down)
	whole(t, "guest to wire", up)
}

// What moves while nobody follows the bridge is found where the bridge has it,
// at the latest after the deadline.
func TestDeadlineThenBridgeDecides(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 3}, lab.DaemonOptions{Config: shortLease})
	moving, other, leaving := h.Guests[0], h.Guests[1], h.Guests[2]
	ctx := within(t, 30*time.Second)
	toMoving := stream(t, h.Wire, moving.Node, lab.StreamOptions{Rate: 1000})
	toLeaving := stream(t, h.Wire, leaving.Node, lab.StreamOptions{Rate: 1000})
	h.awaitRedirects(t, lab.NIC, toMoving)
	h.addEntries(t, 0, 10, other.Port)
	h.checkConsistent(t)
	wire, err := lab.OpenPacket(h.Wire, lab.WireDev)
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	behind, err := lab.OpenPacket(other.Node, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()

	h.kill(t)
	// It must not say again where it is.
	eth0, err := moving.Link("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := moving.Netlink().LinkSetDown(eth0); err != nil {
		t.Fatal(err)
	}
	if err := behind.Send(frame(lab.WireMAC, moving.MAC, "I have moved")); err != nil {
		t.Fatal(err)
	}
	if err := h.Host.WaitFDB(ctx, other.Port, moving.MAC); err != nil {
		t.Fatal(err)
	}
	h.bridge(t, "fdb del "+stationMAC(3).String()+" dev "+other.Port+" master")
	toLeaving.Stop()
	if err := h.RemoveGuest(leaving); err != nil {
		t.Fatal(err)
	}
	h.awaitExpiry(t, moving.MAC)
	toMoving.Stop()

	for name, dest := range map[string]net.HardwareAddr{"moved": moving.MAC, "gone": leaving.MAC} {
		f := frame(dest, lab.WireMAC, "to one who has "+name)
		if err := wire.Send(f); err != nil {
			t.Fatal(err)
		}
		if _, err := behind.Next(ctx, func(b []byte) bool { return bytes.Equal(b, f) }); err != nil {
			t.Errorf("the bridge would send a frame to an address that has %s to %s: %v", name, other.Port, err)
		}
	}

	h.start(t, lab.DaemonOptions{Config: shortLease})
	h.checkConsistent(t)
	if p := h.port(t, leaving.Port); p.Name != "" {
		t.Errorf("a port that went while no daemon ran is still %+v", p)
	}
	fast := h.count(t, lab.NIC, vswitch.Redirected)
	f := frame(moving.MAC, lab.WireMAC, "to where it is now")
	if err := wire.Send(f); err != nil {
		t.Fatal(err)
	}
	if _, err := behind.Next(ctx, func(b []byte) bool { return bytes.Equal(b, f) }); err != nil {
		t.Error(err)
	}
	if now := h.count(t, lab.NIC, vswitch.Redirected); now == fast {
		t.Errorf("a frame to the moved address was not redirected: %v", h.verdicts(t, lab.NIC))
	}
	if p := h.port(t, other.Port); p.State != control.StateFast {
		t.Errorf("%s is %s: %v", p.Name, p.State, p.Held)
	}
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// frame makes a frame of an experimental protocol that no stack answers.
func frame(to, from net.HardwareAddr, text string) []byte {
	f := append(append(append(make([]byte, 0, 60), to...), from...), 0x88, 0xb5)
	f = append(f, text...)
	return append(f, make([]byte, max(0, 60-len(f)))...)
}

// A daemon that wakes up again lets the datapath act only when it has heard of
// all that has changed meanwhile.
func TestDeadlineThenCatchUp(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{Config: shortLease})
	ctx := within(t, 30*time.Second)
	g, other := h.Guests[0], h.Guests[1]
	s := stream(t, h.Wire, g.Node, lab.StreamOptions{Rate: 10000})
	wire, err := lab.OpenPacket(h.Wire, lab.WireDev)
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	mark := frame(broadcast, lab.WireMAC, "all before this has come")
	isMark := func(f []byte) bool { return bytes.Equal(f, mark) }
	var at [2]*lab.Packet
	for i, n := range []*lab.Node{g.Node, other.Node} {
		p, err := lab.OpenPacket(n, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		p.Keep(func(f []byte) bool { return bytes.Equal(f[:6], g.MAC) && len(f) > 100 || isMark(f) })
		at[i] = p
	}
	h.bridge(t, "fdb replace "+g.MAC.String()+" dev "+g.Port+" master static sticky")
	h.awaitRedirects(t, lab.NIC, s)
	h.suspend(t)
	h.awaitExpiry(t, g.MAC)
	at[1].Frames()
	// What it has to catch up with takes a while.
	h.addEntries(t, 0, 10000, g.Port, other.Port)
	h.bridge(t, "fdb replace "+g.MAC.String()+" dev "+other.Port+" master static sticky")
	if _, err := at[1].Collect(ctx, 100); err != nil {
		t.Fatal(err)
	}
	if err := wire.Send(mark); err != nil {
		t.Fatal(err)
	}
	if _, err := at[0].Next(ctx, isMark); err != nil {
		t.Fatal(err)
	}
	fast := uint64(0)
	h.resume()
	for before := h.count(t, lab.NIC, vswitch.Redirected); fast <= before; fast = h.count(t, lab.NIC, vswitch.Redirected) {
		if _, err := at[1].Next(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := wire.Send(mark); err != nil {
		t.Fatal(err)
	}
	stray := 0
	_, err = at[0].Next(ctx, func(f []byte) bool {
		if isMark(f) {
			return true
		}
		stray++
		return false
	})
	if err != nil {
		t.Error(err)
	}
	if stray > 0 {
		t.Errorf("%d frames went to where the address was before the daemon was stopped", stray)
	}
}
