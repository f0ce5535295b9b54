package mix

import (
	"fmt"
	"io"

	"github.com/tapswitch/tapswitch/tools/bench"
)

// A Report is all that was measured in one run.
type Report struct {
	Kernel  string  `json:"kernel"`
	CPUs    int     `json:"cpus"`
	Rounds  int     `json:"rounds"`
	Seconds float64 `json:"seconds_per_measurement"`
	// NoOffloads is of guests without offloads.
	NoOffloads bool      `json:"no_offloads,omitempty"`
	Quick      bool      `json:"quick,omitempty"`
	Loads      []Load    `json:"loads"`
	Findings   []Finding `json:"findings"`
}

// A column is a figure in the tables of a class.
type column struct {
	head   string
	figure Figure
	format string
	scale  float64
}

var (
	goodputColumn  = column{"Mb/s", Goodput, "%.0f", 1}
	requestColumns = []column{
		{"transactions/s", Rate, "%.0f", 1}, {"p50 µs", P50, "%.0f", 1}, {"p99 µs", P99, "%.0f", 1},
	}
	datagramColumns = []column{{"arrived/s", Datagrams, "%.0f", 1}, {"sent/s", Offered, "%.0f", 1}, {"lost %", Loss, "%.2f", 100}}
	perKB           = column{"host ns/kB", HostPerKB, "%.0f", 1}
	cpuColumns      = []column{
		{"host ns/frame", HostPerIn, "%.0f", 1}, {"host CPUs", HostCPUs, "%.2f", 1}, {"ends' CPUs", EndsCPUs, "%.2f", 1},
		{"bytes/frame out", FrameOut, "%.0f", 1},
	}
	tcpColumns = []column{
		{"resent", Retransmits, "%.0f", 1}, {"out of order", OutOfOrder, "%.0f", 1}, {"DSACKs", DSACKs, "%.0f", 1},
	}
)

// columns gives the figures that the table of a class shows, of which the first is
// compared.
func columns(class string) (list []column) {
	switch class {
	case Requests, Flood:
		list = requestColumns
	case UDP:
		list = datagramColumns
	case Mix:
		list = append(append([]column{goodputColumn}, requestColumns...), datagramColumns[2])
	default:
		list = []column{goodputColumn, perKB}
	}
	list = append(list[:len(list):len(list)], cpuColumns...)
	if class == Bulk || class == Acks {
		list = append(list, tcpColumns...)
	}
	return list
}

// About says what the figures are.
const About = `Stations, relays and host share the CPUs. "host" is the CPU time of the host alone: XDP,
GRO, bridge, and transmission into the next device, from the NIC's poll or a tap's
receive on; without copying in and out of taps (vhost's work). "ends" is all other
time of the run: stations' stacks and programs, and relays. Frames are counted at the
host's ports as they come in, merged or not.`

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "Medians of %d rounds of %v s, Linux %s, %d CPUs; ± is half the middle half's width.\n%s\n",
		r.Rounds, r.Seconds, r.Kernel, r.CPUs, About)
	for i := range r.Loads {
		if err := r.Loads[i].write(w); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	for _, f := range r.Findings {
		fmt.Fprintln(w, f)
	}
	for _, note := range r.notes() {
		fmt.Fprintln(w, "note:           ", note)
	}
	return nil
}

// maxOthers is how many CPUs' time other work may take without being mentioned.
const maxOthers = 0.1

// notes gives what a reader should know before relying on the figures.
func (r *Report) notes() (notes []string) {
	if r.NoOffloads {
		notes = append(notes, "the guests have no offloads")
	}
	if r.Quick {
		notes = append(notes, "measured briefly: don't rely on the figures")
	}
	var others []float64
	for _, l := range r.Loads {
		for _, w := range l.Ways {
			others = append(others, w.Figures[OtherCPUs].Median)
		}
	}
	if n := bench.NewSpread(others).Median; n > maxOthers {
		notes = append(notes, fmt.Sprintf("other work on the machine took %.1f of %d CPUs: don't rely on the figures", n, r.CPUs))
	}
	return notes
}

func (l *Load) write(w io.Writer) error {
	fmt.Fprintf(w, "\n%s: %s, %s\n", l.Class, l.Name, l.Family)
	list := columns(l.Class)
	heads := []string{"way", list[0].head, "±", "/bridge", "/PASS"}
	for _, c := range list[1:] {
		heads = append(heads, c.head)
	}
	t := bench.NewTable(heads...)
	for _, r := range l.Ways {
		main := r.Figures[list[0].figure]
		row := []string{
			r.Way, list[0].text(main.Median), list[0].text(main.IQR() / 2),
			fmt.Sprintf("%.2f", r.OverBridge[list[0].figure].Median), fmt.Sprintf("%.2f", r.OverPass[list[0].figure].Median),
		}
		for _, c := range list[1:] {
			row = append(row, c.text(r.Figures[c.figure].Median))
		}
		t.Row(row...)
	}
	return t.Write(w)
}

func (c column) text(v float64) string { return fmt.Sprintf(c.format, v*c.scale) }
