package uplink

import (
	"fmt"
	"io"
	"strconv"

	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/tools/livegen"
	"golang.org/x/sys/unix"
)

// A Report is all that was measured in one run.
type Report struct {
	Kernel     string `json:"kernel"`
	FrameBytes int    `json:"frame_bytes"` // on the wire, with FCS
	// BrNetfilter says whether the kernel has br_netfilter. Where it doesn't,
	// the bridge with the kernel's default is the bridge without.
	BrNetfilter bool            `json:"br_netfilter"`
	Ways        *bench.Result   `json:"ways"`
	Findings    []bench.Finding `json:"findings"`
	// Choice is what the program at the NIC takes, with the choice of ways for TCP
	// and without.
	Choice *bench.Result `json:"choice"`
	// MapBytes is what the datapath's maps take, by name. They have room for
	// all entries and ports from the start.
	MapBytes map[string]uint64 `json:"map_bytes"`
	Growth   []Growth          `json:"growth,omitempty"`
}

func newReport() (*Report, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, fmt.Errorf("asking for the kernel's version: %w", err)
	}
	const fcs = 4
	return &Report{
		Kernel: unix.ByteSliceToString(uts.Release[:]), FrameBytes: livegen.MinFrame + fcs, BrNetfilter: hasBrNetfilter(),
	}, nil
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "From the NIC to a guest's tap, %d-byte frames, Linux %s.\n", r.FrameBytes, r.Kernel)
	fmt.Fprintf(w, "CPU time of the sender per frame, median of %d rounds; net is without the floor of the same round.\n\n", r.Ways.Rounds)
	if err := r.Ways.WriteTable(w); err != nil {
		return err
	}
	fmt.Fprint(w, "\nThe program at the NIC alone, warm, with and without the choice of ways for TCP flows:\n\n")
	if err := r.Choice.WriteTable(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, f := range r.Findings {
		fmt.Fprintln(w, f)
	}
	fmt.Fprintf(w, "The datapath's maps take %s.\n", megabytes(r.MapBytes))
	for _, note := range r.notes() {
		fmt.Fprintln(w, "note:    "+note)
	}
	if len(r.Growth) == 0 {
		return nil
	}
	fmt.Fprint(w, "\nHow it grows: frames at random over all entries and ports. ns per frame, net but for the floor.\n\n")
	t := bench.NewTable("entries", "ports", "VLANs", "floor", "limit", "tapswitch", "tapswitch/limit", "lost", "maps")
	for _, g := range r.Growth {
		if err := g.addRow(t); err != nil {
			return err
		}
	}
	return t.Write(w)
}

// addRow adds the cell as a row of the second table.
func (cell Growth) addRow(t *bench.Table) error {
	floor, ok1 := cell.Ways.Way(Floor)
	limit, ok2 := cell.Ways.Way(Limit)
	fast, ok3 := cell.Ways.Way(Tapswitch)
	if !ok1 || !ok2 || !ok3 {
		return fmt.Errorf("writing the row of %s: a way was not measured", cell)
	}
	t.Row(strconv.Itoa(cell.Entries), strconv.Itoa(cell.Ports), map[bool]string{true: "yes", false: "no"}[cell.VLANs], fmt.Sprintf("%.0f", floor.Gross.Median),
		fmt.Sprintf("%.0f", limit.Net.Median), fmt.Sprintf("%.0f", fast.Net.Median), fmt.Sprintf("%.2f", fast.Ratio.Median),
		fmt.Sprintf("%.3f %%", 100*max(limit.Loss, fast.Loss)), megabytes(cell.MapBytes))
	return nil
}

// megabytes sums up the sizes of maps.
func megabytes(sizes map[string]uint64) string {
	var sum uint64
	for _, n := range sizes {
		sum += n
	}
	return fmt.Sprintf("%.1f MB", float64(sum)/1e6)
}

// notes gives what a reader should know before relying on the figures.
func (r *Report) notes() (notes []string) {
	if !r.BrNetfilter {
		notes = append(notes, "this kernel has no br_netfilter, so its default is the plain bridge")
	}
	check := func(where string, ways *bench.Result) {
		for _, way := range ways.Ways {
			if way.Loss > MaxLoss {
				notes = append(notes, fmt.Sprintf("%s%s lost %.2f %% of its frames: the reader was too slow, so don't compare it", way.Name, where, 100*way.Loss))
			}
		}
	}
	check("", r.Ways)
	for _, g := range r.Growth {
		check(" with "+g.String(), g.Ways)
	}
	return notes
}
