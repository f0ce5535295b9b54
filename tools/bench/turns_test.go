package bench

import (
	"slices"
	"testing"
)

func TestTurns(t *testing.T) {
	for round, want := range [][]int{{0, 1, 2}, {2, 1, 0}, {0, 1, 2}} {
		if got := slices.Collect(Turns(3, round)); !slices.Equal(got, want) {
			t.Errorf("round %d goes %v, want %v", round, got, want)
		}
	}
	for i := range Turns(3, 1) {
		if i != 2 {
			t.Errorf("goes on to %d after the end", i)
		}
		break
	}
}
