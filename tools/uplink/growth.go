package uplink

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/tools/bench/ways"
	"github.com/tapswitch/tapswitch/tools/livegen"
)

// A Growth is the cost with one size of the forwarding table and one number of
// guests. Its floor and limit contain the same prologue, which addresses the
// frames, and send them out of the same taps.
type Growth struct {
	Entries int `json:"entries"` // half of them guests, half outside
	Ports   int `json:"ports"`   // taps
	// VLANs says that the bridge is VLAN-aware: the frames have a tag on the wire and
	// none in the guest, and the guests are isolated from each other and filtered.
	VLANs bool          `json:"vlans"`
	Ways  *bench.Result `json:"result"`
	// MapBytes is what the datapath's maps take, by name.
	MapBytes map[string]uint64 `json:"map_bytes"`
}

// growthRounds is fewer than for the first table: there are six cells.
const growthRounds = 5

// measureGrowth measures all cells.
func measureGrowth(ctx context.Context, g *livegen.Generator, o Options) (cells []Growth, err error) {
	for _, ports := range sizes(1, o.Ports) {
		h, err := newHost(ports)
		if err != nil {
			return nil, err
		}
		for _, vlans := range []bool{false, true} {
			for _, entries := range sizes(2, 1024, o.Entries) {
				cell := Growth{Entries: entries, Ports: ports, VLANs: vlans}
				fmt.Fprintln(o.Progress, cell)
				if err := cell.measure(ctx, g, h, o); err != nil {
					return nil, errors.Join(fmt.Errorf("with %s: %w", cell, err), h.close())
				}
				cells = append(cells, cell)
			}
		}
		if err := h.close(); err != nil {
			return nil, err
		}
	}
	return cells, nil
}

// sizes gives the steps below the last, and the last.
func sizes(steps ...int) []int {
	last := steps[len(steps)-1]
	steps = slices.DeleteFunc(steps, func(n int) bool { return n > last })
	return slices.Compact(steps)
}

// String names the cell.
func (cell Growth) String() string {
	text := fmt.Sprintf("%d entries, %d ports", cell.Entries, cell.Ports)
	if cell.VLANs {
		text += ", VLANs"
	}
	return text
}

func (cell *Growth) measure(ctx context.Context, g *livegen.Generator, h *host, o Options) (err error) {
	taps := h.sink.Taps()
	stations := makeStations(cell.Entries, taps)
	var ports []int
	for _, tap := range taps {
		ports = append(ports, tap.Ifindex)
	}
	to := ways.Options{Ports: ports, Stations: stations}
	frame := livegen.UDPFrame([6]byte{}, [6]byte{}, livegen.MinFrame) // the prologue addresses it
	if cell.VLANs {
		to.Tag = tag
		frame = slices.Insert(frame, 12, 0, 0, 0, 0) // and writes the tag
	}
	programs, err := ways.Load(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, programs.Close()) }()
	fast, err := openFastPath(h, taps, stations, cell.VLANs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fast.Close(false)) }()
	l := &lane{
		host: h, generator: g, programs: programs, fast: fast, pacing: o.pacing(),
		frame: frame,
	}
	behindSpray := func(p *ebpf.Program, measure func() (bench.Sample, error)) func() (bench.Sample, error) {
		return func() (bench.Sample, error) {
			if err := programs.SetUnderTest(p); err != nil {
				return bench.Sample{}, err
			}
			return measure()
		}
	}
	rounds := growthRounds
	if o.Rounds > 0 {
		rounds = min(rounds, o.Rounds)
	}
	cell.Ways, err = bench.Run(ctx, []bench.Way{
		{Name: Floor, Measure: behindSpray(programs.Floor, func() (bench.Sample, error) { return l.sample(programs.Spray, nil) })},
		{Name: Limit, Measure: behindSpray(programs.LimitSprayed, l.through(programs.Spray))},
		{Name: Tapswitch, Measure: behindSpray(fast.UplinkRxXDP(), func() (bench.Sample, error) { return l.sampleFast(programs.Spray, l.frame) })},
	}, bench.Options{Rounds: rounds, Floor: Floor, Base: Limit, Progress: o.Progress})
	if err != nil {
		return err
	}
	cell.MapBytes, err = fast.mapBytes()
	return err
}
