package uplink

import (
	"context"
	"fmt"

	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/tools/bench/ways"
	"github.com/tapswitch/tapswitch/tools/livegen"
	"github.com/tapswitch/tapswitch/vswitch"
)

// What the program at the NIC is run on, with the choice of ways for TCP flows and
// without, as it is named in results.
const (
	UDPUnchosen  = "UDP, no choice"
	UDPChosen    = "UDP"
	TCPUnchosen  = "TCP, no choice"
	TCPChosen    = "TCP"
	LongUnchosen = "long TCP, no choice"
	LongChosen   = "long TCP"
)

// ChoiceGoals are what the choice may cost.
var ChoiceGoals = []bench.Goal{
	{Way: TCPChosen, Base: TCPUnchosen, MoreBy: 20},
	{Way: UDPChosen, Base: UDPUnchosen, MoreBy: 2}, // which is nothing, within the noise
}

const (
	// choiceRuns is how often the program runs per sample, some ten milliseconds.
	choiceRuns = 1 << 17
	// choiceRounds is how many rounds there are for each one of the first table: what
	// is looked for is nanoseconds.
	choiceRounds = 9
)

// measureChoice runs the program at the NIC on the same frame again and again,
// without carrying out its redirects: next to those, the choice would drown in noise.
func measureChoice(ctx context.Context, g *livegen.Generator, fast *fastPath, s ways.Station, o Options) (*bench.Result, error) {
	udp := livegen.UDPFrame(s.Dest, s.Source, livegen.MinFrame)
	tcp := livegen.TCPFrame(s.Dest, s.Source, livegen.MinFrame)
	long := livegen.TCPFrame(s.Dest, s.Source, maxFrame)
	runs, rounds := choiceRuns, choiceRounds*o.Rounds
	if o.Quick {
		runs, rounds = runs/64, o.Rounds
	}
	way := func(name string, frame []byte, bulkFrame int) bench.Way {
		traffic := livegen.Traffic{Program: fast.UplinkRxXDP(), Ingress: fast.nic, Frame: frame, Dry: true}
		want := vswitch.Redirected
		if name == LongChosen {
			want = vswitch.PassBulk
		}
		return bench.Way{Name: name, Measure: func() (s bench.Sample, err error) {
			// No idle time, as the short frames are of the long ones' flow.
			fast.Choose(hostbpf.Choice{BulkFrame: bulkFrame})
			err = fast.during(want, func() (uint64, error) {
				b, err := g.Send(traffic, runs)
				s = bench.Sample{Frames: b.Frames, CPU: b.CPU}
				return b.Frames, err
			})
			return s, err
		}}
	}
	fmt.Fprintln(o.Progress, "the program at the NIC alone")
	return bench.Run(ctx, []bench.Way{
		way(UDPUnchosen, udp, 0), way(UDPChosen, udp, hostbpf.DefaultBulkFrame),
		way(TCPUnchosen, tcp, 0), way(TCPChosen, tcp, hostbpf.DefaultBulkFrame),
		way(LongUnchosen, long, 0), way(LongChosen, long, hostbpf.DefaultBulkFrame),
	}, bench.Options{Rounds: rounds, Base: UDPUnchosen})
}
