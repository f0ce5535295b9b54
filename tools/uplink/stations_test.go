package uplink

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapswitch/tapswitch/tools/tapsink"
)

func TestMakeStations(t *testing.T) {
	taps := []tapsink.Tap{{Ifindex: 10}, {Ifindex: 11}, {Ifindex: 12}, {Ifindex: 13}}
	tests := []struct{ entries, pairs int }{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {64, 32}, {32768, 16384}}
	for _, tt := range tests {
		stations := makeStations(tt.entries, taps)
		if len(stations) != tt.pairs {
			t.Errorf("%d entries: %d pairs, want %d", tt.entries, len(stations), tt.pairs)
		}
		seen := map[[6]byte]bool{}
		perTap := map[int]int{}
		for _, s := range stations {
			for _, mac := range [][6]byte{s.Dest, s.Source} {
				if seen[mac] {
					t.Errorf("%d entries: %x comes twice", tt.entries, mac)
				}
				if mac[0]&1 != 0 {
					t.Errorf("%d entries: %x is a group address", tt.entries, mac)
				}
				seen[mac] = true
			}
			perTap[s.Ifindex]++
		}
		for ifindex, n := range perTap {
			if want := max(1, tt.pairs/len(taps)); n != want {
				t.Errorf("%d entries: %d guests behind tap %d, want %d", tt.entries, n, ifindex, want)
			}
		}
		if !slices.Equal(stations, makeStations(tt.entries, taps)) {
			t.Errorf("%d entries: not the same the second time", tt.entries)
		}
	}
}

func TestSizes(t *testing.T) {
	tests := []struct{ steps, want []int }{
		{[]int{2, 1024, 32768}, []int{2, 1024, 32768}},
		{[]int{2, 1024, 1024}, []int{2, 1024}},
		{[]int{2, 1024, 64}, []int{2, 64}},
		{[]int{2, 1024, 2}, []int{2}},
		{[]int{1, 256}, []int{1, 256}},
		{[]int{1, 1}, []int{1}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, sizes(slices.Clone(tt.steps)...)); diff != "" {
			t.Errorf("sizes of %v (-want +got):\n%s", tt.steps, diff)
		}
	}
}
