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
	Entries int           `json:"entries"` // half of them guests, half outside
	Ports   int           `json:"ports"`   // taps
	Ways    *bench.Result `json:"result"`
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
		for _, entries := range sizes(2, 1024, o.Entries) {
			fmt.Fprintf(o.Progress, "%d entries, %d ports\n", entries, ports)
			cell, err := measureCell(ctx, g, h, entries, o)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("with %d entries and %d ports: %w", entries, ports, err), h.close())
			}
			cells = append(cells, cell)
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

func measureCell(ctx context.Context, g *livegen.Generator, h *host, entries int, o Options) (_ Growth, err error) {
	taps := h.sink.Taps()
	cell := Growth{Entries: entries, Ports: len(taps)}
	stations := makeStations(entries, taps)
	var ports []int
	for _, tap := range taps {
		ports = append(ports, tap.Ifindex)
	}
	programs, err := ways.Load(ways.Options{Ports: ports, Stations: stations})
	if err != nil {
		return cell, err
	}
	defer func() { err = errors.Join(err, programs.Close()) }()
	fast, err := openFastPath(h, taps, stations)
	if err != nil {
		return cell, err
	}
	defer func() { err = errors.Join(err, fast.Close(false)) }()
	l := &lane{
		host: h, generator: g, programs: programs, fast: fast, pacing: o.pacing(),
		frame: livegen.UDPFrame([6]byte{}, [6]byte{}, livegen.MinFrame), // the prologue addresses it
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
		return cell, err
	}
	cell.MapBytes, err = fast.mapBytes()
	return cell, err
}
