package mix

import (
	"fmt"
	"strings"

	"github.com/tapswitch/tapswitch/tools/bench"
)

// A Goal is a wanted relation between a figure of the fast path and the same of
// the bridge.
type Goal struct {
	Way    string `json:"way"`
	Class  string `json:"class"`
	Name   string `json:"name,omitempty"` // part of the load's name; empty means all of the class
	Figure Figure `json:"figure"`
	Base   string `json:"base"`
	// AtLeast and AtMost are bounds of the ratio; 0 is none.
	AtLeast float64 `json:"at_least,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"`
	// MoreBy bounds, if it is not 0, by how much the figure may be higher: a loss
	// of nothing has no ratio.
	MoreBy float64 `json:"more_by,omitempty"`
}

// Goals are what the fast path is wanted to reach. The bridge with PASS pays for XDP
// on a veth as Tapswitch does on a NIC's, and the one without pays nothing, as
// Tapswitch by tc.
var Goals = []Goal{
	{Way: Tapswitch, Class: Bulk, Name: intoGuest, Figure: Goodput, Base: BridgePass, AtLeast: 1.05},
	{Way: Tapswitch, Class: Bulk, Name: intoGuest, Figure: Goodput, Base: Bridge, AtLeast: 0.85},
	{Way: ByTC, Class: Bulk, Name: intoGuest, Figure: Goodput, Base: Bridge, AtLeast: 1},
	{Way: Tapswitch, Class: Bulk, Name: outOfGuest, Figure: Goodput, Base: Bridge, AtLeast: 1},
	{Way: Tapswitch, Class: Bulk, Name: acrossGuest, Figure: Goodput, Base: Bridge, AtLeast: 1},
	{Way: Tapswitch, Class: Requests, Figure: Rate, Base: Bridge, AtLeast: 1.15},
	{Way: Tapswitch, Class: Requests, Figure: Rate, Base: BridgePass, AtLeast: 1.15},
	{Way: Tapswitch, Class: Requests, Figure: P99, Base: Bridge, AtMost: 1},
	{Way: ByTC, Class: Requests, Figure: Rate, Base: Bridge, AtLeast: 1},
	{Way: Tapswitch, Class: Acks, Figure: Goodput, Base: BridgePass, AtLeast: 1},
	{Way: Tapswitch, Class: Acks, Figure: HostPerKB, Base: BridgePass, AtMost: 1},
	{Way: ByTC, Class: Acks, Figure: Goodput, Base: Bridge, AtLeast: 1},
	{Way: ByTC, Class: Acks, Figure: HostPerKB, Base: Bridge, AtMost: 1},
	{Way: Tapswitch, Class: Mix, Figure: Goodput, Base: BridgePass, AtLeast: 1},
	{Way: Tapswitch, Class: Mix, Figure: Rate, Base: BridgePass, AtLeast: 1},
	{Way: ByTC, Class: Mix, Figure: Goodput, Base: Bridge, AtLeast: 1},
	{Way: ByTC, Class: Mix, Figure: Rate, Base: Bridge, AtLeast: 1},
	{Way: ByTC, Class: Mix, Figure: P99, Base: Bridge, AtMost: 1},
	{Way: Tapswitch, Class: Flood, Figure: P99, Base: Bridge, AtMost: 1.1},
	{Way: ByTC, Class: Flood, Figure: P99, Base: Bridge, AtMost: 1.1},
	{Way: ByTC, Class: Mix, Figure: Loss, Base: Bridge, MoreBy: 0.001},
	{Way: Tapswitch, Class: Mix, Figure: Loss, Base: Bridge, MoreBy: 0.001},
}

// A Finding says whether a goal was met under one load.
type Finding struct {
	Goal
	Load   string `json:"load"`
	Family string `json:"family"`
	// Ratio is the fast path's figure divided by the base's of the same round. Its
	// median decides. Where there is no ratio it is zero, and the medians' difference
	// decides.
	Ratio bench.Spread `json:"ratio"`
	Met   bool         `json:"met"`
	// Close says that the bound lies within the middle half of the rounds: another
	// run may find the opposite.
	Close bool `json:"close,omitempty"`
}

// judge holds what was measured against goals.
func (r *Report) judge(goals []Goal) (list []Finding) {
	for i := range r.Loads {
		for _, g := range goals {
			if l := &r.Loads[i]; g.Class == l.Class && strings.Contains(l.Name, g.Name) {
				list = append(list, l.judge(g))
			}
		}
	}
	return list
}

func (l *Load) judge(g Goal) Finding {
	f := Finding{Goal: g, Load: l.Name, Family: l.Family}
	fast := l.way(g.Way)
	if g.MoreBy > 0 {
		f.Met = fast.Figures[g.Figure].Median-l.way(g.Base).Figures[g.Figure].Median <= g.MoreBy
		return f
	}
	ratios := fast.OverBridge
	if g.Base == BridgePass {
		ratios = fast.OverPass
	}
	f.Ratio = ratios[g.Figure]
	f.Met = f.Ratio.Median >= g.AtLeast && (g.AtMost == 0 || f.Ratio.Median <= g.AtMost)
	for _, bound := range []float64{g.AtLeast, g.AtMost} {
		f.Close = f.Close || f.Ratio.Q1 < bound && bound < f.Ratio.Q3
	}
	return f
}

// String gives the finding as a line for people.
func (f Finding) String() string {
	verdict := "not met"
	if f.Met {
		verdict = "met"
	}
	if f.Close {
		verdict += ", close"
	}
	verdict = fmt.Sprintf("%-15s %s, %s: %s of %s ", verdict+":", f.Load, f.Family, f.Figure, f.Way)
	switch {
	case f.MoreBy > 0:
		return verdict + fmt.Sprintf("wanted at most %g above %s", f.MoreBy, f.Base)
	case f.AtMost > 0:
		return verdict + fmt.Sprintf("is %.2f × %s (%.2f–%.2f), wanted ≤ %.2f", f.Ratio.Median, f.Base, f.Ratio.Min, f.Ratio.Max, f.AtMost)
	}
	return verdict + fmt.Sprintf("is %.2f × %s (%.2f–%.2f), wanted ≥ %.2f", f.Ratio.Median, f.Base, f.Ratio.Min, f.Ratio.Max, f.AtLeast)
}
