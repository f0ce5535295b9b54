package mix

import (
	"math"
	"slices"

	"github.com/tapswitch/tapswitch/tools/bench"
)

// A Load is one load and how the ways compare under it.
type Load struct {
	Class  string   `json:"class"`
	Name   string   `json:"name"`
	Family string   `json:"family"` // "ipv4" or "ipv6"
	Ways   []Result `json:"ways"`
}

// A Result sums up all rounds of a load by one way.
type Result struct {
	Way     string                  `json:"way"`
	Figures map[Figure]bench.Spread `json:"figures"`
	// OverBridge and OverPass are figures divided by those of the same round by
	// the bridge, without and with the XDP program that does nothing.
	OverBridge map[Figure]bench.Spread `json:"over_bridge"`
	OverPass   map[Figure]bench.Spread `json:"over_bridge_pass"`
}

// Samples are what the rounds of a load gave, by way and round.
type samples [][]Figures

// values gives one figure of a way by round.
func (s samples) values(way int, f Figure) []float64 {
	list := make([]float64, len(s[way]))
	for i, sample := range s[way] {
		list[i] = sample[f]
	}
	return list
}

func (s samples) result(c cell, ways []string) Load {
	l := Load{Class: c.class, Name: c.name, Family: c.family()}
	bridge, pass := slices.Index(ways, Bridge), slices.Index(ways, BridgePass)
	for way, name := range ways {
		r := Result{
			Way: name, Figures: map[Figure]bench.Spread{},
			OverBridge: map[Figure]bench.Spread{}, OverPass: map[Figure]bench.Spread{},
		}
		for f := range s[way][0] {
			values := s.values(way, f)
			r.Figures[f] = bench.NewSpread(values)
			for base, ratios := range map[int]map[Figure]bench.Spread{bridge: r.OverBridge, pass: r.OverPass} {
				// Nothing is not a number of times nothing, which JSON could not say.
				ratio := bench.Ratio(values, s.values(base, f))
				if !math.IsNaN(ratio.Median) && !math.IsInf(ratio.Max, 0) {
					ratios[f] = ratio
				}
			}
		}
		l.Ways = append(l.Ways, r)
	}
	return l
}

// way gives the result of a way.
func (l *Load) way(name string) *Result {
	i := slices.IndexFunc(l.Ways, func(r Result) bool { return r.Way == name })
	return &l.Ways[i]
}
