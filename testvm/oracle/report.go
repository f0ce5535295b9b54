package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A Report says what was compared.
type Report struct {
	Frames  int
	Out     int            // frames that came out of the plain host
	Kinds   map[string]int // frames by kind
	Changes map[string]int
	// Verdicts are those on the frames and on the oracle's own marks.
	Verdicts map[vswitch.Verdict]uint64
	// Returned counts entries that the daemon brought back, because it refreshed
	// them in the moment in which they were deleted.
	Returned int
	// MovedBack counts the times that it brought entries back to where they had
	// been, for the same reason, until it had heard of the move.
	MovedBack int
	// Settling is how long the datapath was waited for, and Longest at most, for
	// what LongestFor says.
	Settling, Longest time.Duration
	LongestFor        string
	Elapsed           time.Duration
}

// add adds up two reports.
func (r *Report) add(o *Report) {
	if r.Kinds == nil {
		r.Kinds, r.Changes, r.Verdicts = map[string]int{}, map[string]int{}, map[vswitch.Verdict]uint64{}
	}
	r.Frames += o.Frames
	r.Out += o.Out
	addCounts(r.Kinds, o.Kinds)
	addCounts(r.Changes, o.Changes)
	addCounts(r.Verdicts, o.Verdicts)
	r.Returned += o.Returned
	r.MovedBack += o.MovedBack
	r.Settling += o.Settling
	if o.Longest > r.Longest {
		r.Longest, r.LongestFor = o.Longest, o.LongestFor
	}
	r.Elapsed += o.Elapsed
}

func addCounts[K comparable, N int | uint64](to, from map[K]N) {
	for k, n := range from {
		to[k] += n
	}
}

// Redirected is the share of frames that went by the fast path.
func (r *Report) Redirected() float64 {
	var all uint64
	for _, n := range r.Verdicts {
		all += n
	}
	return float64(r.Verdicts[vswitch.Redirected]) / float64(max(all, 1))
}

func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d frames in, %d out, %.0f%% redirected, %.1fs, of which %.1fs waiting for the datapath (%v at most: %s), %d entries returned, %d times moved back",
		r.Frames, r.Out, 100*r.Redirected(), r.Elapsed.Seconds(), r.Settling.Seconds(), r.Longest.Round(time.Millisecond), r.LongestFor[:min(len(r.LongestFor), 100)], r.Returned, r.MovedBack)
	for _, v := range vswitch.Verdicts() {
		if r.Verdicts[v] > 0 {
			fmt.Fprintf(&b, "\n%12d %s", r.Verdicts[v], v)
		}
	}
	for _, counts := range []map[string]int{r.Kinds, r.Changes} {
		b.WriteString("\n")
		for i, name := range slices.Sorted(maps.Keys(counts)) {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s %d", name, counts[name])
		}
	}
	return b.String()
}
