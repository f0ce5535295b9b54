package bench

import (
	"fmt"
	"io"
	"slices"
)

// A Result is how the ways compare.
type Result struct {
	Rounds int         `json:"rounds"`
	Floor  string      `json:"floor,omitempty"`
	Base   string      `json:"base"`
	Ways   []WayResult `json:"ways"`
}

// A WayResult sums up all rounds of one way.
type WayResult struct {
	Name string `json:"name"`
	// Gross and Net are nanoseconds of the sender's CPU time per frame, with
	// and without the floor's of the same round.
	Gross Spread `json:"gross_ns_per_frame"`
	Net   Spread `json:"net_ns_per_frame"`
	// Ratio is Net divided by the base's of the same round.
	Ratio  Spread  `json:"net_over_base"`
	Frames uint64  `json:"frames"`
	Lost   uint64  `json:"lost"`
	Loss   float64 `json:"loss_fraction"`

	nets []float64 // by round
}

// Way gives the result of the way with this name.
func (r *Result) Way(name string) (WayResult, bool) {
	i := slices.IndexFunc(r.Ways, func(w WayResult) bool { return w.Name == name })
	if i < 0 {
		return WayResult{}, false
	}
	return r.Ways[i], true
}

// Ratio compares two ways round by round.
func Ratio(values, base []float64) Spread {
	ratios := make([]float64, len(values))
	for i := range values {
		ratios[i] = values[i] / base[i]
	}
	return NewSpread(ratios)
}

// WriteTable writes the result for people, one line per way.
func (r *Result) WriteTable(w io.Writer) error {
	t := NewTable("way", "ns/frame", "net ns", "min", "max", "IQR", "net/"+r.Base, "lost")
	for _, way := range r.Ways {
		if way.Name == r.Floor {
			t.Row(way.Name, ns(way.Gross.Median), "-", "-", "-", "-", "-", percent(way.Loss))
			continue
		}
		t.Row(way.Name, ns(way.Gross.Median), ns(way.Net.Median), ns(way.Net.Min), ns(way.Net.Max),
			ns(way.Net.IQR()), fmt.Sprintf("%.2f", way.Ratio.Median), percent(way.Loss))
	}
	return t.Write(w)
}

func ns(v float64) string      { return fmt.Sprintf("%.0f", v) }
func percent(v float64) string { return fmt.Sprintf("%.3f %%", 100*v) }
