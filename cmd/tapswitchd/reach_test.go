package main

import (
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

func TestReachability(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{})
	ctx := within(t, time.Minute)
	ports, err := h.api.Ports(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"nic0": bothHooks(), "vnet0": tcHook(), "vnet1": tcHook()}
	for _, p := range ports {
		if p.State != control.StateFast || p.Hook != want[p.Name] {
			t.Errorf("%s is %s by %q: %v", p.Name, p.State, p.Hook, p.Held)
		}
		delete(want, p.Name)
	}
	if len(want) > 0 {
		t.Errorf("no ports %v", want)
	}
	a, b := h.Guests[0], h.Guests[1]
	for _, pair := range []struct {
		from, to *lab.Node
	}{{h.Wire, a.Node}, {a.Node, h.Wire}, {a.Node, b.Node}, {a.Node, h.Host}, {h.Wire, h.Host}} {
		for _, v6 := range []bool{false, true} {
			addr, err := pair.to.Addr(v6)
			if err != nil {
				t.Fatal(err)
			}
			if err := lab.Ping(ctx, pair.from, addr, 5); err != nil {
				t.Errorf("%s to %s: %v", pair.from.Name(), addr, err)
			}
		}
	}
	for _, way := range []struct{ client, server *lab.Node }{{h.Wire, a.Node}, {a.Node, h.Wire}, {a.Node, b.Node}} {
		addr, err := way.server.Addr(false)
		if err != nil {
			t.Fatal(err)
		}
		r, err := lab.Fetch(ctx, way.client, way.server, addr, transferSize(20<<20))
		if err != nil {
			t.Errorf("%s from %s: %v", way.client.Name(), way.server.Name(), err)
		}
		t.Logf("%s from %s: %.0f Mb/s", way.client.Name(), way.server.Name(), r.MbPerSecond())
	}
	for _, port := range []string{"nic0", "vnet0", "vnet1"} {
		if n := h.count(t, port, vswitch.Redirected); n == 0 {
			t.Errorf("no frame from %s was redirected", port)
		}
	}
}
