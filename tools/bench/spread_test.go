package bench

import (
	"slices"
	"testing"
)

func TestSpread(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		want   Spread
		iqr    float64
	}{
		{name: "none"},
		{"one", []float64{3}, Spread{3, 3, 3, 3, 3}, 0},
		{"two", []float64{4, 2}, Spread{Median: 3, Min: 2, Q1: 2.5, Q3: 3.5, Max: 4}, 1},
		{"odd", []float64{5, 1, 4, 2, 3}, Spread{Median: 3, Min: 1, Q1: 2, Q3: 4, Max: 5}, 2},
		{"even", []float64{4, 3, 2, 1}, Spread{Median: 2.5, Min: 1, Q1: 1.75, Q3: 3.25, Max: 4}, 1.5},
		{"one far off", []float64{1, 1, 1, 1, 900}, Spread{Median: 1, Min: 1, Q1: 1, Q3: 1, Max: 900}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			values := slices.Clone(tt.values)
			got := NewSpread(values)
			if got != tt.want || got.IQR() != tt.iqr {
				t.Errorf("got %+v with IQR %v, want %+v with %v", got, got.IQR(), tt.want, tt.iqr)
			}
			if !slices.Equal(values, tt.values) {
				t.Errorf("the values were changed to %v", values)
			}
		})
	}
}
