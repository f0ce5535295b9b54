package mix

import (
	"strings"
	"testing"

	"github.com/tapswitch/tapswitch/tools/bench"
)

// Three rounds; the ratios to the bridge are 2, 0.5 and 1.2, those to PASS 4, 2, 3.
func testLoad() Load {
	figures := func(f Figure, values ...float64) (list []Figures) {
		for _, v := range values {
			list = append(list, Figures{f: v, Loss: 0})
		}
		return list
	}
	s := samples{figures(Goodput, 100, 200, 100), figures(Goodput, 50, 50, 40), figures(Goodput, 10, 10, 10), figures(Goodput, 200, 100, 120), figures(Goodput, 100, 100, 100)}
	return s.result(cell{class: Bulk, name: "1 stream into a guest", v6: true}, Ways)
}

func TestResult(t *testing.T) {
	l := testLoad()
	if l.Class != Bulk || l.Family != "ipv6" || len(l.Ways) != len(Ways) {
		t.Errorf("the load is %+v", l)
	}
	fast := l.way(Tapswitch)
	for _, tt := range []struct {
		name string
		got  bench.Spread
		want float64
	}{
		{"goodput", fast.Figures[Goodput], 120},
		{"ratio to the bridge", fast.OverBridge[Goodput], 1.2},
		{"ratio to PASS", fast.OverPass[Goodput], 3},
		{"the bridge's ratio", l.way(Bridge).OverBridge[Goodput], 1},
	} {
		if tt.got.Median != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, tt.got.Median, tt.want)
		}
	}
	if r, ok := fast.OverBridge[Loss]; ok {
		t.Errorf("no loss over no loss is %v", r)
	}
}

func TestJudge(t *testing.T) {
	r := Report{Loads: []Load{testLoad()}}
	for _, tt := range []struct {
		goal       Goal
		met, close bool
		line       string
	}{
		{Goal{Figure: Goodput, Base: Bridge, AtLeast: 1.1}, true, true, "met, close:     1 stream into a guest, ipv6: mbit_per_s of tapswitch is 1.20 × bridge (0.50–2.00), wanted ≥ 1.10"},
		{Goal{Figure: Goodput, Base: Bridge, AtLeast: 1.7}, false, false, "not met:        1 stream into"},
		{Goal{Figure: Goodput, Base: Bridge, AtMost: 1}, false, true, "wanted ≤ 1.00"},
		{Goal{Figure: Goodput, Base: BridgePass, AtLeast: 2}, true, false, "3.00 × bridge + PASS"},
		{Goal{Name: "into", Figure: Goodput, Base: BridgePass, AtLeast: 2.8}, true, true, "met, close"},
		{Goal{Figure: Loss, Base: Bridge, MoreBy: 0.001}, true, false, "loss of tapswitch wanted at most 0.001 above bridge"},
	} {
		tt.goal.Way, tt.goal.Class = Tapswitch, Bulk
		list := r.judge([]Goal{tt.goal})
		if len(list) != 1 {
			t.Fatalf("%+v gives %d findings, want 1", tt.goal, len(list))
		}
		if f := list[0]; f.Met != tt.met || f.Close != tt.close || !strings.Contains(f.String(), tt.line) {
			t.Errorf("%+v gives met %v, close %v, %q; want %v, %v and %q in it", tt.goal, f.Met, f.Close, f, tt.met, tt.close, tt.line)
		}
	}
	for _, g := range []Goal{{Way: Tapswitch, Class: Mix, Figure: Goodput, Base: Bridge}, {Way: Tapswitch, Class: Bulk, Name: "out of", Figure: Goodput, Base: Bridge}} {
		if list := r.judge([]Goal{g}); len(list) != 0 {
			t.Errorf("%+v is held against %v", g, list)
		}
	}
}

// Each goal must be about something that is measured.
func TestGoals(t *testing.T) {
	for _, g := range Goals {
		found := false
		for _, c := range cells(g.Class) {
			found = found || strings.Contains(c.name, g.Name)
		}
		if !found {
			t.Errorf("no load is measured for %+v", g)
		}
	}
}
