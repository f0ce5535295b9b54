package bench

import (
	"math"
	"slices"
)

// A Spread sums up repeated measurements of one thing.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
}

// NewSpread sums up values, which stay as they are. Without any it is zero.
func NewSpread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return Spread{
		Median: quantile(sorted, 0.5),
		Min:    sorted[0],
		Q1:     quantile(sorted, 0.25),
		Q3:     quantile(sorted, 0.75),
		Max:    sorted[len(sorted)-1],
	}
}

// IQR gives the interquartile range: how far apart the middle half lies.
func (s Spread) IQR() float64 { return s.Q3 - s.Q1 }

// quantile interpolates between the two nearest of the sorted values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	below := int(math.Floor(at))
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}
