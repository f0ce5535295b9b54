package main

import (
	"maps"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// A daemon that is killed leaves the datapath to the next one, at a moment of
// which no frame takes notice.
func TestRestart(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	g := h.Guests[0]
	ctx := within(t, time.Minute)
	down := stream(t, h.Wire, g.Node, lab.StreamOptions{Rate: 10000})
	up := stream(t, g.Node, h.Wire, lab.StreamOptions{Rate: 10000})
	before := h.attachments(t)
	if len(before) != 2 {
		t.Fatalf("attachments are %v, want one for the uplink and one for the guest", before)
	}
	verdicts := map[string]map[vswitch.Verdict]uint64{}
	for _, port := range []string{"nic0", g.Port} {
		verdicts[port] = h.verdicts(t, port)
	}
	for round := range 20 {
		h.kill(t)
		h.start(t, lab.DaemonOptions{})
		st, err := h.api.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !st.Datapath.Adopted {
			t.Errorf("round %d: the daemon did not adopt the datapath", round)
		}
		after := h.attachments(t)
		for name, a := range after {
			if a.link != before[name].link {
				t.Errorf("round %d: %s is link %d, was %d: attached anew, which some NICs answer with a break", round, name, a.link, before[name].link)
			}
			if a.program == before[name].program {
				t.Errorf("round %d: %s still runs the program of the daemon before", round, name)
			}
		}
		if len(after) != len(before) {
			t.Errorf("round %d: attachments are %v, were %v", round, after, before)
		}
		before = after
		for port, old := range verdicts {
			now := h.verdicts(t, port)
			for v, n := range old {
				if now[v] < n {
					t.Errorf("round %d: %s counts %d %v, has been at %d", round, port, now[v], v, n)
				}
			}
			verdicts[port] = now
		}
		for _, s := range []*lab.Stream{down, up} {
			if err := s.WaitReceived(ctx, 200); err != nil {
				t.Fatal(err)
			}
		}
	}
	for port, r := range map[string]lab.StreamReport{
		"nic0": whole(t, "wire to guest", down), g.Port: whole(t, "guest to wire", up),
	} {
		// Nothing but the lookup of addresses has gone by the bridge.
		if n := h.count(t, port, vswitch.Redirected); n < r.Sent {
			t.Errorf("%d frames from %s were redirected, want all %d at least: %v", n, port, r.Sent, h.verdicts(t, port))
		}
	}
}

// verdicts gives the frames from a port by verdict, those that there were.
func (h *host) verdicts(t *testing.T, port string) map[vswitch.Verdict]uint64 {
	t.Helper()
	counts := map[vswitch.Verdict]uint64{}
	for _, c := range h.stats(t, port).Verdicts {
		counts[c.Verdict] = c.Frames
	}
	maps.DeleteFunc(counts, func(_ vswitch.Verdict, n uint64) bool { return n == 0 })
	return counts
}
