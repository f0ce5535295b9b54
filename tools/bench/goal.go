package bench

import "fmt"

// A Goal is a wanted relation between the net costs of two ways.
type Goal struct {
	Way     string  `json:"way"`
	Base    string  `json:"base"`
	AtMost  float64 `json:"at_most,omitempty"`  // 0: no upper bound
	AtLeast float64 `json:"at_least,omitempty"` // 0: no lower bound
	// MoreBy bounds by how many nanoseconds the way may cost more than its base; 0 is
	// no bound.
	MoreBy float64 `json:"more_by_ns,omitempty"`
	// Aim is what one hopes for beyond AtMost; it only shows in the text.
	Aim float64 `json:"aim,omitempty"`
}

// A Finding says whether a goal was met.
type Finding struct {
	Goal
	// Ratio is the way's net cost divided by the base's of the same round.
	// Its median decides.
	Ratio Spread `json:"ratio"`
	// More is the way's net cost less the base's of the same round, in nanoseconds.
	More Spread `json:"more_ns"`
	Met  bool   `json:"met"`
}

// Judge holds the result against a goal.
func (r *Result) Judge(g Goal) (Finding, error) {
	way, ok := r.Way(g.Way)
	base, ok2 := r.Way(g.Base)
	if !ok || !ok2 {
		return Finding{}, fmt.Errorf("judging %s by %s: one of them was not measured", g.Way, g.Base)
	}
	f := Finding{Goal: g, Ratio: Ratio(way.nets, base.nets), More: difference(way.nets, base.nets)}
	f.Met = (g.AtMost == 0 || f.Ratio.Median <= g.AtMost) && f.Ratio.Median >= g.AtLeast &&
		(g.MoreBy == 0 || f.More.Median <= g.MoreBy)
	return f, nil
}

// difference compares two ways round by round.
func difference(values, base []float64) Spread {
	more := make([]float64, len(values))
	for i := range values {
		more[i] = values[i] - base[i]
	}
	return NewSpread(more)
}

// String gives the finding as a line for people.
func (f Finding) String() string {
	verdict, wanted := "not met", ""
	if f.Met {
		verdict = "met"
	}
	if f.MoreBy > 0 {
		return fmt.Sprintf("%-8s %s costs %.0f ns more than %s (%.0f–%.0f), wanted ≤ %.0f", verdict+":", f.Way, f.More.Median, f.Base, f.More.Min, f.More.Max, f.MoreBy)
	}
	if f.AtMost > 0 {
		wanted += fmt.Sprintf(", wanted ≤ %.2f", f.AtMost)
	}
	if f.AtLeast > 0 {
		wanted += fmt.Sprintf(", wanted ≥ %.2f", f.AtLeast)
	}
	if f.Aim > 0 {
		wanted += fmt.Sprintf(" (aim %.2f)", f.Aim)
	}
	return fmt.Sprintf("%-8s %s costs %.2f × %s (%.2f–%.2f)%s", verdict+":", f.Way, f.Ratio.Median, f.Base, f.Ratio.Min, f.Ratio.Max, wanted)
}
