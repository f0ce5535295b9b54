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
	// However long a start takes on a busy machine: deadlines have tests of their own.
	o := lab.DaemonOptions{Config: longLease}
	h := newHost(t, lab.Options{Guests: 1}, o)
	g := h.Guests[0]
	ctx := within(t, time.Minute)
	down := stream(t, h.Wire, g.Node, lab.StreamOptions{Rate: 10000})
	up := stream(t, g.Node, h.Wire, lab.StreamOptions{Rate: 10000})
	h.awaitRedirects(t, lab.NIC, down)
	h.awaitRedirects(t, g.Port, up)
	before := h.attachments(t)
	want := map[string]int{"tcx": 3, "clsact": 1}[tcHook()] // a filter is no link
	if len(before) != want {
		t.Fatalf("attachments are %v, want %d", before, want)
	}
	first, verdicts := map[string]map[vswitch.Verdict]uint64{}, map[string]map[vswitch.Verdict]uint64{}
	for _, port := range []string{lab.NIC, g.Port} {
		first[port] = h.verdicts(t, port)
		verdicts[port] = first[port]
	}
	rounds := 20
	if emulated() {
		rounds = 5
	}
	for round := range rounds {
		h.kill(t)
		h.start(t, o)
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
	whole(t, "wire to guest", down)
	whole(t, "guest to wire", up)
	for port, since := range first {
		h.checkAllRedirected(t, port, since)
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

// checkAllRedirected checks that no frame from a port has gone by the bridge since
// these were its verdicts, but for broadcasts.
func (h *host) checkAllRedirected(t *testing.T, port string, since map[vswitch.Verdict]uint64) {
	t.Helper()
	for v, n := range h.verdicts(t, port) {
		if v != vswitch.Redirected && v != vswitch.PassGroup && n > since[v] {
			t.Errorf("%d frames from %s went by the bridge: %s", n-since[v], port, v.Meaning())
		}
	}
}
