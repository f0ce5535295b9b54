package guestpath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tapswitch/tapswitch/guestbpf"
	"github.com/tapswitch/tapswitch/guestbpf/rules"
	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/tools/livegen"
)

// The ways of a frame, as they are named in results.
const (
	Floor   = "floor"
	L2fwd   = "l2fwd"
	FIB     = "l3fwd --fib"
	Routes  = "l3fwd --routes"
	Kernel  = "kernel forwarding"
	Drop    = "drop"
	TCDrop  = "tc drop"
	NFTDrop = "nft drop"
)

// Goals are how many times as much the others are wanted to cost.
var Goals = []bench.Goal{
	{Way: Kernel, Base: L2fwd, AtLeast: 3},
	{Way: Kernel, Base: FIB, AtLeast: 3},
	{Way: Kernel, Base: Routes, AtLeast: 3},
	{Way: TCDrop, Base: Drop, AtLeast: 2.5},
	{Way: NFTDrop, Base: Drop, AtLeast: 2.5},
}

// Options say how much is measured. The zero value takes less than a minute.
type Options struct {
	// Rounds is how often each way is measured; zero means 11.
	Rounds int
	// Quick makes all samples short, to see that everything works. Don't rely on its
	// figures.
	Quick bool
	// Progress, if not nil, is told of each round in a line.
	Progress io.Writer
}

// A Report is all that was measured in one run.
type Report struct {
	Ways     *bench.Result   `json:"ways"`
	Findings []bench.Finding `json:"findings"`
	// FramesPerFlush is how many frames a devmap handed over at once, by way: 16 at most.
	// What others redirect on this machine meanwhile is counted too.
	FramesPerFlush map[string]float64 `json:"frames_per_flush"`
}

// Run measures all, in this network namespace, in which it makes eth0, far0 and eth1, and
// removes them again.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	report = &Report{FramesPerFlush: map[string]float64{}}
	err = livegen.OnCPU(senderCPU, func(g *livegen.Generator) error { return report.measure(ctx, g, o) })
	return report, err
}

// A lane is a guest and what is needed to send frames through it.
type lane struct {
	*router
	*programs
	generator *livegen.Generator
	pacing    bench.Pacing
	frame     []byte
}

func (r *Report) measure(ctx context.Context, g *livegen.Generator, o Options) (err error) {
	guest, err := newRouter()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guest.close()) }()
	l := &lane{router: guest, generator: g, frame: livegen.UDPFrame(inMAC, fromMAC, livegen.MinFrame)}
	if o.Quick {
		l.pacing = bench.Pacing{Bursts: 4}
	}
	if l.programs, err = loadPrograms(l.frame); err != nil {
		return err
	}
	defer l.programs.close()
	forwarding := map[string]func(func() error) error{L2fwd: l.withL2fwd, FIB: l.withFIB, Routes: l.withRoutes}
	ways := []bench.Way{
		{Name: Floor, Measure: func() (bench.Sample, error) { return l.sample(l.drop, nil) }},
		{Name: L2fwd, Measure: l.attachedWay(l.withL2fwd, l.sink)},
		{Name: FIB, Measure: l.attachedWay(l.withFIB, l.sink)},
		{Name: Routes, Measure: l.attachedWay(l.withRoutes, l.sink)},
		{Name: Kernel, Measure: func() (bench.Sample, error) { return l.sample(l.pass, l.sink) }},
		{Name: Drop, Measure: l.attachedWay(l.withDrop, nil)},
		{Name: TCDrop, Measure: l.tcWay},
		{Name: NFTDrop, Measure: l.nftWay},
	}
	r.Ways, err = bench.Run(ctx, ways, bench.Options{Rounds: o.Rounds, Floor: Floor, Base: FIB, Progress: o.Progress})
	if err != nil {
		return err
	}
	for _, goal := range Goals {
		finding, err := r.Ways.Judge(goal)
		if err != nil {
			return err
		}
		r.Findings = append(r.Findings, finding)
	}
	for name, with := range forwarding {
		if r.FramesPerFlush[name], err = l.countFlushes(with); err != nil {
			return err
		}
	}
	return nil
}

// sample sends frames through a program and counts what arrives in the sink.
func (l *lane) sample(p *ebpf.Program, sink bench.Sink) (bench.Sample, error) {
	if err := l.next.Put(uint32(0), p); err != nil {
		return bench.Sample{}, fmt.Errorf("setting the way's program: %w", err)
	}
	traffic := livegen.Traffic{Program: l.begin, Ingress: l.in.Attrs().Index, Frame: l.frame}
	return l.pacing.Sample(func(n int) (livegen.Burst, error) { return l.generator.Send(traffic, n) }, sink)
}

// attachedWay gives the measurement of what with attaches.
func (l *lane) attachedWay(with func(func() error) error, sink bench.Sink) func() (bench.Sample, error) {
	return func() (s bench.Sample, err error) {
		err = with(func() error {
			p, err := l.attached()
			if err != nil {
				return err
			}
			defer p.Close()
			s, err = l.sample(p, sink)
			return err
		})
		return s, err
	}
}

// during runs do while something is attached.
func (l *lane) during(attach error, do func() error) error {
	if attach != nil {
		return attach
	}
	err := do()
	_, detach := l.guest.Detach(inDev)
	return errors.Join(err, detach)
}

func (l *lane) withL2fwd(do func() error) error {
	return l.during(l.guest.AttachL2fwd(guestbpf.Pair{A: inDev, B: outDev, ToB: toMAC[:]}), do)
}

func (l *lane) withFIB(do func() error) error {
	return l.during(l.guest.AttachFIB([]string{inDev, outDev}), do)
}

func (l *lane) withRoutes(do func() error) error {
	follower, err := l.guest.AttachRoutes([]string{inDev, outDev})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- follower.Run(ctx) }()
	return l.during(nil, func() error {
		err := do()
		cancel()
		return errors.Join(err, <-ended)
	})
}

func (l *lane) withDrop(do func() error) error {
	set, err := rules.Parse(strings.NewReader("drop proto udp dport 9\n"))
	if err != nil {
		return err
	}
	return l.during(l.guest.AttachDrop(inDev, set), do)
}

func (l *lane) tcWay() (_ bench.Sample, err error) {
	tcx, err := link.AttachTCX(link.TCXOptions{Program: l.tcDrop, Interface: l.in.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return bench.Sample{}, fmt.Errorf("attaching to the tc ingress of %s (needs Linux 6.6): %w", inDev, err)
	}
	defer func() { err = errors.Join(err, tcx.Close()) }()
	return l.sample(l.pass, nil)
}

func (l *lane) nftWay() (_ bench.Sample, err error) {
	remove, err := dropByNftables(inDev)
	if err != nil {
		return bench.Sample{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	return l.sample(l.pass, nil)
}

// countFlushes gives the frames that are handed to eth1 at once.
func (l *lane) countFlushes(with func(func() error) error) (perFlush float64, err error) {
	counter, err := link.AttachTracing(link.TracingOptions{Program: l.counter})
	if err != nil {
		return 0, fmt.Errorf("attaching to the tracepoint xdp_devmap_xmit: %w", err)
	}
	defer counter.Close()
	read := func() (c [2]uint64, err error) { err = l.flushed.Lookup(uint32(0), &c); return c, err }
	before, err := read()
	if err != nil {
		return 0, fmt.Errorf("reading the counters of flushes: %w", err)
	}
	if _, err := l.attachedWay(with, l.sink)(); err != nil {
		return 0, err
	}
	after, err := read()
	if err != nil {
		return 0, fmt.Errorf("reading the counters of flushes: %w", err)
	}
	return float64(after[0]-before[0]) / float64(after[1]-before[1]), nil
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	if err := r.Ways.WriteTable(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, f := range r.Findings {
		fmt.Fprintln(w, f)
	}
	for _, name := range []string{L2fwd, FIB, Routes} {
		fmt.Fprintf(w, "%s hands over %.1f frames at once\n", name, r.FramesPerFlush[name])
	}
	return nil
}
