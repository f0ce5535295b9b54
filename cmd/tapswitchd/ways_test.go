package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// TestBulkIsMerged sends a file into a guest, and sees it arrive merged, by the
// tc hook, and without a loss.
func TestBulkIsMerged(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1, NICGRO: true}, lab.DaemonOptions{})
	g := h.Guests[0]
	size := transferSize(100 << 20)
	if _, err := lab.Fetch(within(t, time.Minute), g.Node, h.Wire, lab.WireAddr4, size); err != nil {
		t.Fatal(err)
	}
	s := h.stats(t, "nic0")
	frames, merged := h.count(t, "nic0", vswitch.PassBulk), uint64(0)
	for _, c := range s.Merged {
		if c.Verdict == vswitch.Redirected {
			merged = c.Frames
		}
	}
	if least := uint64(size / 1448); frames < least {
		t.Errorf("%d frames went by as bulk, want %d at least", frames, least)
	}
	if merged == 0 || merged > frames/2 {
		t.Errorf("%d frames of the wire were redirected as %d, want them merged", frames, merged)
	}
	t.Logf("%.1f frames of the wire in each that the guest got", float64(frames)/float64(merged))
	st, err := h.api.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Totals.Lost != 0 {
		t.Errorf("%d frames were lost", st.Totals.Lost)
	}
	if st.Datapath.BulkFlows != 1 {
		t.Errorf("status shows %d bulk flows, want 1", st.Datapath.BulkFlows)
	}
}

// TestUnmergedGuest has a guest whose driver takes no merged segments, until it does:
// XDP is the way for its bulk flows as well, and only for them.
func TestUnmergedGuest(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2, NICGRO: true}, lab.DaemonOptions{})
	a, b := h.Guests[0], h.Guests[1]
	merged := func(g *lab.Guest) bool {
		t.Helper()
		before := h.count(t, "nic0", vswitch.PassBulk)
		if _, err := lab.Fetch(within(t, time.Minute), g.Node, h.Wire, lab.WireAddr4, transferSize(10<<20)); err != nil {
			t.Fatal(err)
		}
		return h.count(t, "nic0", vswitch.PassBulk) > before
	}
	for _, on := range []bool{false, true} {
		if err := h.Host.SetOffload(a.Port, lab.TSO, on); err != nil {
			t.Fatal(err)
		}
		eventually(t, 5*time.Second, fmt.Sprintf("bulk into %s is merged: %v", a.Port, on), func() bool { return merged(a) == on })
		if !merged(b) {
			t.Errorf("bulk into %s is not merged", b.Port)
		}
	}
}

// TestWithoutXDP has an uplink that hides VLAN tags from XDP: tc alone serves it,
// and says why, until it no longer does.
func TestWithoutXDP(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1, NICGRO: true}, lab.DaemonOptions{})
	g := h.Guests[0]
	hook := func(want string, held vswitch.HoldCode) {
		t.Helper()
		h.await(t, 5*time.Second, fmt.Sprintf("nic0 is served by %s because %q", want, held), func() bool {
			p := h.port(t, "nic0")
			if p.Hook != want || held == "" {
				return p.Hook == want && len(p.Held) == 0
			}
			return len(p.Held) == 1 && p.Held[0].Code == held
		})
	}
	hook(bothHooks(), "")
	if err := h.Host.SetOffload(lab.NIC, lab.RxVLAN, true); err != nil {
		t.Fatal(err)
	}
	hook(tcHook(), vswitch.HoldHiddenTags)
	ctx := within(t, 30*time.Second)
	if err := lab.Ping(ctx, h.Wire, g.Addr4, 5); err != nil {
		t.Error(err)
	}
	if _, err := lab.Fetch(ctx, g.Node, h.Wire, lab.WireAddr6, transferSize(10<<20)); err != nil {
		t.Error(err)
	}
	if err := h.Host.SetOffload(lab.NIC, lab.RxVLAN, false); err != nil {
		t.Fatal(err)
	}
	hook(bothHooks(), "")
	if err := lab.Ping(ctx, h.Wire, g.Addr4, 5); err != nil {
		t.Error(err)
	}
}

// TestPromotion gives native XDP to a guest that sends complete frames.
func TestPromotion(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2, Guest: lab.GuestOptions{NoOffloads: true}}, lab.DaemonOptions{
		Config: fmt.Sprintf("%s\npromote = [%q]", labConfig, "fe:54:00:00:00:01"),
	})
	a, b := h.Guests[0], h.Guests[1]
	for port, want := range map[string]string{a.Port: bothHooks(), b.Port: tcHook()} {
		if p := h.port(t, port); p.Hook != want {
			t.Errorf("%s is attached by %q, want %q: %v", port, p.Hook, want, p.Held)
		}
	}
	ctx := within(t, 30*time.Second)
	for _, v6 := range []bool{false, true} {
		for _, way := range []struct{ client, server *lab.Node }{{b.Node, a.Node}, {a.Node, b.Node}, {h.Wire, a.Node}} {
			addr, err := way.server.Addr(v6)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lab.Fetch(ctx, way.client, way.server, addr, transferSize(10<<20)); err != nil {
				t.Errorf("%s from %s: %v", way.client.Name(), way.server.Name(), err)
			}
		}
	}
	if n := h.count(t, a.Port, vswitch.Redirected); n == 0 {
		t.Error("no frame of the promoted guest was redirected by XDP")
	}
}
