package uplink

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/tools/bench/ways"
	"github.com/tapswitch/tapswitch/tools/livegen"
	"github.com/tapswitch/tapswitch/vswitch"
)

// The ways from the NIC to the tap, as they are named in results.
const (
	Floor         = "floor"
	Limit         = "limit"
	LimitArray    = "limit, DEVMAP"
	Tapswitch     = "tapswitch"
	TapswitchTCP  = "tapswitch, TCP"
	TCRedirect    = "tc redirect"
	Bridge        = "bridge"
	BridgeDefault = "bridge, default"
)

// Goals are what the fast path is wanted to cost, compared with the others.
var Goals = []bench.Goal{
	{Way: Tapswitch, Base: Limit, AtMost: 1.25, Aim: 1.15},
	{Way: Bridge, Base: Tapswitch, AtLeast: 3},
	{Way: BridgeDefault, Base: Tapswitch, AtLeast: 5},
}

// VLANGoal is what VLANs, isolated ports and filters may cost, with one guest: what the bridge
// makes sure of must not make the fast path slow.
var VLANGoal = bench.Goal{Way: Tapswitch, Base: Limit, AtMost: 1.3, Aim: 1.15}

// MaxLoss is the fraction of frames that may be lost without the ways becoming
// incomparable: a lost frame costs less than one that arrives.
const MaxLoss = 0.001

// Options say how much is measured. The zero value takes some two minutes.
type Options struct {
	// Rounds is how often each way is measured; zero means 11.
	Rounds int
	// Entries and Ports are the largest forwarding table and the most guests
	// for the second table; zero means 32768 and 256, a negative number of
	// either leaves the table out.
	Entries, Ports int
	// Quick makes all samples short, to see that everything works. Don't rely
	// on its figures.
	Quick bool
	// Progress, if not nil, is told what is being done, in lines.
	Progress io.Writer
}

func (o Options) withDefaults() Options {
	if o.Entries == 0 {
		o.Entries = 32768
	}
	if o.Ports == 0 {
		o.Ports = 256
	}
	if o.Rounds == 0 {
		o.Rounds = 11
		if o.Quick {
			o.Rounds = 3
		}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

func (o Options) pacing() bench.Pacing {
	if o.Quick {
		return bench.Pacing{Bursts: 4}
	}
	return bench.Pacing{}
}

// Run measures all, in this network namespace, in which it makes br0, nic0,
// wire0, and vnet0 and so on, and removes them again.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	report, err := newReport()
	if err != nil {
		return nil, err
	}
	err = livegen.OnCPU(senderCPU, func(g *livegen.Generator) error {
		if err := report.compare(ctx, g, o); err != nil {
			return err
		}
		if err := errors.Join(report.judge(report.Ways, Goals), report.judge(report.Choice, ChoiceGoals)); err != nil {
			return err
		}
		if o.Entries <= 0 || o.Ports <= 0 {
			return nil
		}
		if report.Growth, err = measureGrowth(ctx, g, o); err != nil {
			return err
		}
		return report.judgeVLANs()
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// judge adds what a result says of goals.
func (r *Report) judge(result *bench.Result, goals []bench.Goal) error {
	for _, goal := range goals {
		finding, err := result.Judge(goal)
		if err != nil {
			return err
		}
		r.Findings = append(r.Findings, finding)
	}
	return nil
}

// judgeVLANs adds what the smallest table with VLANs says of VLANGoal.
func (r *Report) judgeVLANs() error {
	for _, cell := range r.Growth {
		if !cell.VLANs {
			continue
		}
		finding, err := cell.Ways.Judge(VLANGoal)
		finding.Way += ", VLANs"
		r.Findings = append(r.Findings, finding)
		return err
	}
	return nil
}

// A lane is one host and what is needed to send frames through it.
type lane struct {
	*host
	generator *livegen.Generator
	programs  *ways.Programs
	fast      *fastPath
	pacing    bench.Pacing
	frame     []byte // UDP
	tcpFrame  []byte // of the same length
}

// compare measures with one guest: all ways, what the program itself takes, and the
// datapath's maps.
func (r *Report) compare(ctx context.Context, g *livegen.Generator, o Options) (err error) {
	h, err := newHost(1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	taps := h.sink.Taps()
	stations := makeStations(2, taps)
	if err := h.addStation(stations[0].Dest, taps[0]); err != nil {
		return err
	}
	programs, err := ways.Load(ways.Options{Egress: taps[0].Ifindex})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, programs.Close()) }()
	fast, err := openFastPath(h, taps, stations, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fast.Close(false)) }()

	l := &lane{
		host: h, generator: g, programs: programs, fast: fast, pacing: o.pacing(),
		frame:    livegen.UDPFrame(stations[0].Dest, stations[0].Source, livegen.MinFrame),
		tcpFrame: livegen.TCPFrame(stations[0].Dest, stations[0].Source, livegen.MinFrame),
	}
	fmt.Fprintln(o.Progress, "the ways from the NIC to a guest")
	r.Ways, err = bench.Run(ctx, []bench.Way{
		{Name: Floor, Measure: func() (bench.Sample, error) { return l.sample(programs.Floor, nil) }},
		{Name: Limit, Measure: l.through(programs.Limit)},
		{Name: LimitArray, Measure: l.through(programs.LimitArray)},
		{Name: Tapswitch, Measure: func() (bench.Sample, error) { return l.sampleFast(fast.UplinkRxXDP(), l.frame) }},
		{Name: TapswitchTCP, Measure: func() (bench.Sample, error) { return l.sampleFast(fast.UplinkRxXDP(), l.tcpFrame) }},
		{Name: TCRedirect, Measure: l.sampleTC},
		{Name: Bridge, Measure: func() (bench.Sample, error) { return l.sampleBridge(false) }},
		{Name: BridgeDefault, Measure: func() (bench.Sample, error) { return l.sampleBridge(true) }},
	}, bench.Options{Rounds: o.Rounds, Floor: Floor, Base: Limit, Progress: o.Progress})
	if err != nil {
		return err
	}
	if r.MapBytes, err = fast.mapBytes(); err != nil {
		return err
	}
	r.Choice, err = measureChoice(ctx, g, fast, stations[0], o)
	return err
}

// sample sends frames through a program and counts what arrives in the sink.
func (l *lane) sample(p *ebpf.Program, sink bench.Sink) (bench.Sample, error) {
	traffic := livegen.Traffic{Program: p, Ingress: l.nic.Attrs().Index, Frame: l.frame}
	return l.pacing.Sample(func(n int) (livegen.Burst, error) { return l.generator.Send(traffic, n) }, sink)
}

// through gives the measurement of a program that needs nothing else.
func (l *lane) through(p *ebpf.Program) func() (bench.Sample, error) {
	return func() (bench.Sample, error) { return l.sample(p, l.sink) }
}

// sampleFast measures the datapath, entered through p.
func (l *lane) sampleFast(p *ebpf.Program, frame []byte) (s bench.Sample, err error) {
	traffic := livegen.Traffic{Program: p, Ingress: l.nic.Attrs().Index, Frame: frame}
	err = l.fast.during(vswitch.Redirected, func() (sent uint64, err error) {
		s, err = l.pacing.Sample(func(n int) (livegen.Burst, error) {
			b, err := l.generator.Send(traffic, n)
			sent += b.Frames
			return b, err
		}, l.sink)
		return sent, err
	})
	return s, err
}

// sampleTC measures the redirect at the NIC's tc hook.
func (l *lane) sampleTC() (_ bench.Sample, err error) {
	tcx, err := link.AttachTCX(link.TCXOptions{
		Program: l.programs.TCRedirect, Interface: l.nic.Attrs().Index, Attach: ebpf.AttachTCXIngress,
	})
	if err != nil {
		return bench.Sample{}, fmt.Errorf("attaching to the tc ingress of nic0 (needs Linux 6.6): %w", err)
	}
	defer func() { err = errors.Join(err, tcx.Close()) }()
	return l.sample(l.programs.Pass, l.sink)
}

// sampleBridge measures the bridge, with br_netfilter or without.
func (l *lane) sampleBridge(netfilter bool) (bench.Sample, error) {
	if err := setBrNetfilter(netfilter); err != nil {
		return bench.Sample{}, err
	}
	return l.sample(l.programs.Pass, l.sink)
}
