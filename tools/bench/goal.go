package bench

import "fmt"

// A Goal is a wanted relation between the net costs of two ways.
type Goal struct {
	Way     string  `json:"way"`
	Base    string  `json:"base"`
	AtMost  float64 `json:"at_most,omitempty"`  // 0: no upper bound
	AtLeast float64 `json:"at_least,omitempty"` // 0: no lower bound
	// Aim is what one hopes for beyond AtMost; it only shows in the text.
	Aim float64 `json:"aim,omitempty"`
}

// A Finding says whether a goal was met.
type Finding struct {
	Goal
	// Ratio is the way's net cost divided by the base's of the same round.
	// Its median decides.
	Ratio Spread `json:"ratio"`
	Met   bool   `json:"met"`
}

// Judge holds the result against a goal.
func (r *Result) Judge(g Goal) (Finding, error) {
	way, ok := r.Way(g.Way)
	base, ok2 := r.Way(g.Base)
	if !ok || !ok2 {
		return Finding{}, fmt.Errorf("judging %s by %s: one of them was not measured", g.Way, g.Base)
	}
	f := Finding{Goal: g, Ratio: Ratio(way.nets, base.nets)}
	f.Met = (g.AtMost == 0 || f.Ratio.Median <= g.AtMost) && f.Ratio.Median >= g.AtLeast
	return f, nil
}

// String gives the finding as a line for people.
func (f Finding) String() string {
	verdict, wanted := "not met", ""
	if f.Met {
		verdict = "met"
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
