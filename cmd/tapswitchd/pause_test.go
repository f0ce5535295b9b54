package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// checkPaused checks that a port is held for no other reason than a pause.
func (h *host) checkPaused(t *testing.T, name string, until time.Time) {
	t.Helper()
	p := h.port(t, name)
	if p.State != control.StateHeld || len(p.Held) != 1 || p.Held[0].Code != vswitch.HoldPaused || !p.Held[0].Until.Equal(until) {
		t.Errorf("%s is %s because of %+v, want it paused until %s", name, p.State, p.Held, until)
	}
	if p.Hook == "" {
		t.Errorf("the hooks of %s are gone, which would make some NICs take their link down", name)
	}
}

// A pause sends a guest's frames by the bridge and back, without a loss, and
// ends by itself.
func TestPause(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{Config: longLease})
	g, other := h.Guests[0], h.Guests[1]
	ctx := within(t, time.Minute)
	down := stream(t, h.Wire, g.Node, lab.StreamOptions{Rate: 5000})
	up := stream(t, g.Node, h.Wire, lab.StreamOptions{Rate: 5000})
	h.awaitRedirects(t, lab.NIC, down)
	h.awaitRedirects(t, g.Port, up)

	p, err := h.api.Pause(ctx, g.Port, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(p.Until); left < 50*time.Minute || left > time.Hour {
		t.Errorf("asked for an hour, and got a pause for %s", left)
	}
	h.checkPaused(t, g.Port, p.Until)
	// What was read before the answer came may be counted as redirected after it.
	if err := up.WaitReceived(ctx, 100); err != nil {
		t.Fatal(err)
	}
	held, redirected := h.count(t, g.Port, vswitch.PassHeld), h.count(t, g.Port, vswitch.Redirected)
	egress := h.count(t, lab.NIC, vswitch.PassEgressHeld)
	for _, s := range []*lab.Stream{up, down} {
		if err := s.WaitReceived(ctx, 500); err != nil {
			t.Fatal(err)
		}
	}
	if n := h.count(t, g.Port, vswitch.Redirected) - redirected; n != 0 {
		t.Errorf("%d frames of the paused port were redirected", n)
	}
	if h.count(t, g.Port, vswitch.PassHeld) == held || h.count(t, lab.NIC, vswitch.PassEgressHeld) == egress {
		t.Error("no frame passed because of the pause")
	}
	h.checkFast(t, h.Wire, other.Node, lab.NIC, other.Port)

	if p, err = h.api.Resume(ctx, g.Port); err != nil || !p.Ended {
		t.Fatalf("resuming: %+v, %v", p, err)
	}
	h.awaitFast(t, g.Port)
	h.awaitRedirects(t, g.Port, up)
	if p, err = h.api.Resume(ctx, g.Port); err != nil || p.Ended {
		t.Errorf("resuming a port that is not paused: %+v, %v", p, err)
	}

	// Nobody resumes this one.
	if _, err = h.api.Pause(ctx, g.Port, control.MinPause); err != nil {
		t.Fatal(err)
	}
	h.awaitFast(t, g.Port)
	h.awaitRedirects(t, lab.NIC, down)
	whole(t, "wire to guest", down)
	whole(t, "guest to wire", up)
	if _, err := h.api.Pause(ctx, "vnet9", time.Minute); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pausing a port that is not there: %v, want not-exist", err)
	}
}

// A pause of a bridge is one of all its ports, a new one too, and of its devices,
// whatever comes by their names later.
func TestPauseBridge(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{Config: longLease})
	ctx := within(t, time.Minute)
	p, err := h.api.Pause(ctx, lab.BridgeDev, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(p.Ports, " "); got != "nic0 vnet0 vnet1" {
		t.Errorf("the pause is of %q", got)
	}
	for _, name := range p.Ports {
		h.checkPaused(t, name, p.Until)
	}
	ping(t, h.Wire, h.Guests[0].Node)
	// A port's own pause is one beside its bridge's.
	one, err := h.api.Pause(ctx, "vnet1", 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.port(t, "vnet1").Held) != 2 {
		t.Errorf("vnet1 is held for %+v, want two reasons", h.port(t, "vnet1").Held)
	}
	if still, err := h.api.Resume(ctx, "vnet1"); err != nil || !still.Ended || still.Still != lab.BridgeDev || !still.Until.Equal(p.Until) {
		t.Errorf("resuming a port of a paused bridge: %+v, %v", still, err)
	}
	if _, err = h.api.Pause(ctx, "vnet1", 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	tap, err := lab.OpenTap(h.Host, "vnet2", lab.TapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tap.Close() })
	if err := h.Plug("vnet2"); err != nil {
		t.Fatal(err)
	}
	h.await(t, 5*time.Second, "vnet2 is paused", func() bool { return holdText(h.port(t, "vnet2"), "paused by hand") })
	if all, err := h.api.Resume(ctx, lab.BridgeDev); err != nil || !all.Ended || len(all.Ports) != 4 {
		t.Errorf("resuming the bridge: %+v, %v", all, err)
	}
	h.awaitFast(t, lab.NIC, "vnet0", "vnet1", "vnet2")

	// Another device of the same name is another port.
	if one, err = h.api.Pause(ctx, "vnet2", time.Hour); err != nil {
		t.Fatal(err)
	}
	h.ip(t, "link del vnet2")
	h.await(t, 5*time.Second, "vnet2 is gone", func() bool { return h.port(t, "vnet2").Name == "" })
	h.sink(t, "vnet2", 2, lab.TapOptions{})
	h.awaitFast(t, "vnet2")
	if again := h.port(t, "vnet2"); again.Ifindex == one.Ifindex {
		t.Fatalf("the device has the same ifindex %d", again.Ifindex)
	}
}

// A restart ends pauses, as the manual says.
func TestPauseEndsWithDaemon(t *testing.T) {
	o := lab.DaemonOptions{Config: longLease}
	h := newHost(t, lab.Options{Guests: 1}, o)
	p, err := h.api.Pause(t.Context(), "vnet0", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	h.checkPaused(t, "vnet0", p.Until)
	h.kill(t)
	h.start(t, o)
	h.awaitFast(t, "vnet0")
	h.checkFast(t, h.Wire, h.Guests[0].Node, lab.NIC, "vnet0")
}
