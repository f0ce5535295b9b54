package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

func TestStopLeavesNothing(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{})
	down := stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 5000})
	up := stream(t, h.Guests[1].Node, h.Wire, lab.StreamOptions{Rate: 5000})
	if on := h.programsOn(t); len(on) != 4 {
		t.Errorf("programs are on %v, want two on the uplink and one on each guest", on)
	}
	h.stop(t)
	h.checkNothingLeft(t)
	for _, s := range []*lab.Stream{down, up} {
		if err := s.WaitReceived(within(t, 10*time.Second), 500); err != nil {
			t.Error(err)
		}
	}
	whole(t, "wire to guest", down)
	whole(t, "guest to wire", up)
}

// With -keep the datapath outlives a clean stop as it outlives a crash.
func TestStopKeepsDatapath(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: longLease, Args: []string{"-keep"}})
	ctx := within(t, 30*time.Second)
	down := stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 5000})
	up := stream(t, h.Guests[0].Node, h.Wire, lab.StreamOptions{Rate: 5000})
	h.awaitRedirects(t, lab.NIC, down)
	h.awaitRedirects(t, "vnet0", up)
	ofWire, ofGuest := h.verdicts(t, lab.NIC), h.verdicts(t, "vnet0")
	pins, attached := h.pinnedLinks(t), h.attachments(t)
	h.stop(t)
	if now := h.pinnedLinks(t); !cmp.Equal(now, pins) {
		t.Errorf("pins are %v, were %v", now, pins)
	}
	if now := h.attachments(t); !cmp.Equal(now, attached, cmp.AllowUnexported(attachment{})) {
		t.Errorf("attachments are %v, were %v", now, attached)
	}
	for _, s := range []*lab.Stream{down, up} {
		if err := s.WaitReceived(ctx, 500); err != nil {
			t.Fatal(err)
		}
	}
	h.start(t, lab.DaemonOptions{})
	st, err := h.api.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !st.Datapath.Adopted {
		t.Error("the next daemon did not adopt the datapath")
	}
	whole(t, "wire to guest", down)
	whole(t, "guest to wire", up)
	h.checkAllRedirected(t, lab.NIC, ofWire)
	h.checkAllRedirected(t, "vnet0", ofGuest)
}
