package lab

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func TestWaitSeesWhatHappensLater(t *testing.T) {
	l := testLab(t, Options{Guests: 1})
	g := l.Guests[0]
	ctx := testContext(t)

	waits := make(chan error, 3)
	go func() { waits <- l.Host.WaitFDB(ctx, g.Port, g.MAC) }()
	go func() { waits <- l.Host.WaitFDB(ctx, NIC, WireMAC) }()
	if err := Ping(ctx, l.Wire, g.Addr4, 1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-waits; err != nil {
			t.Error(err)
		}
	}
	go func() { waits <- l.Host.WaitGone(ctx, g.PortIfindex()) }()
	go func() { waits <- l.Host.WaitNoFDB(ctx, g.Port, g.MAC) }()
	go func() { waits <- l.Host.WaitRunning(ctx, "vnet1") }()
	if _, err := l.AddGuest(GuestOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := l.RemoveGuest(g); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-waits; err != nil {
			t.Error(err)
		}
	}
}

// TestWaitNeedsNoOtherEvent changes only the FDB, and only after the first look.
func TestWaitNeedsNoOtherEvent(t *testing.T) {
	l := testLab(t, Options{Guests: 1})
	g := l.Guests[0]
	ctx := testContext(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 7, 7}
	wire := testPacket(t, l.Wire, WireDev)
	looked, waited := make(chan struct{}, 100), make(chan error)
	wait := func(want bool) {
		waited <- l.Host.WaitUntil(ctx, "the MAC comes or goes", func(h *netlink.Handle) (bool, error) {
			there, err := behind(h, NIC, mac)
			looked <- struct{}{}
			return there == want, err
		})
	}
	go wait(true)
	<-looked
	if err := wire.Send(rawFrame(g.MAC, mac, nil, "no one")); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	for len(looked) > 0 {
		<-looked
	}
	go wait(false)
	<-looked
	if err := l.Host.Command(ctx, "bridge", "fdb", "del", mac.String(), "dev", NIC, "master").Run(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

func TestWaitEnds(t *testing.T) {
	n := testNode(t, "n")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := n.WaitRunning(ctx, "none"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for nothing: %v, want the context's error", err)
	}
	broken := errors.New("broken")
	err := n.WaitUntil(t.Context(), "x", func(*netlink.Handle) (bool, error) { return false, broken })
	if !errors.Is(err, broken) {
		t.Errorf("error is %v, want the check's", err)
	}
}
