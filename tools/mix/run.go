package mix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/tools/mix/account"
)

// Options say what is measured. Daemon must be set.
type Options struct {
	// Daemon is the path of the tapswitchd to run.
	Daemon string
	// Rounds is how often each load is measured by each way; zero means 5, or 1
	// if Quick.
	Rounds int
	// Class is the only class of load to measure; empty means all.
	Class string
	// NoOffloads is of guests that take no merged frames, and leave neither
	// checksums nor segmentation to the host.
	NoOffloads bool
	// Quick makes all measurements short, to see that everything works. Don't rely
	// on its figures.
	Quick bool
	// Progress, if not nil, is told of each round in a line.
	Progress io.Writer
}

func (o Options) withDefaults() Options {
	if o.Rounds == 0 {
		o.Rounds = 5
		if o.Quick {
			o.Rounds = 1
		}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// threads is how many threads of this process may run Go code at a time: senders
// and sinks that wait in the kernel must not keep relays from being called.
const threads = 16

// Run measures all, in labs of its own in this network namespace.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	o = o.withDefaults()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	m := &meter{warmUp: 200 * time.Millisecond, time: 600 * time.Millisecond}
	if o.Quick {
		m.warmUp, m.time = 70*time.Millisecond, 150*time.Millisecond
	}
	defer func() { err = errors.Join(err, m.close()) }()
	fmt.Fprintln(o.Progress, "building a host for each way")
	if err := m.open(ctx, o, Ways); err != nil {
		return nil, err
	}
	list := cells(o.Class)
	samples := make([]samples, len(list))
	for i := range samples {
		samples[i] = make([][]Figures, len(Ways))
	}
	began := time.Now()
	for round := range o.Rounds {
		for i, c := range list {
			for way := range bench.Turns(len(Ways), round) {
				f, err := m.measure(ctx, c, way)
				if err != nil {
					return nil, fmt.Errorf("measuring %s, %s, %s, by %s: %w", c.class, c.name, c.family(), Ways[way], err)
				}
				samples[i][way] = append(samples[i][way], f)
			}
		}
		left := time.Since(began) / time.Duration(round+1) * time.Duration(o.Rounds-round-1)
		fmt.Fprintf(o.Progress, "round %d of %d, about %v left\n", round+1, o.Rounds, left.Round(time.Second))
	}
	return newReport(o, m.time, list, samples)
}

func (m *meter) open(ctx context.Context, o Options, ways []string) error {
	var hosts, stations []int
	for _, way := range ways {
		h, err := newHost(ctx, way, o)
		if err != nil {
			return err
		}
		m.hosts = append(m.hosts, h)
		hosts = append(hosts, h.Host.NetNS())
		for _, n := range h.stations() {
			stations = append(stations, n.NetNS())
		}
	}
	var err error
	m.account, err = account.Open(hosts, stations)
	return err
}

func (m *meter) close() error {
	var errs []error
	if m.account != nil {
		errs = append(errs, m.account.Close())
	}
	for _, h := range m.hosts {
		errs = append(errs, h.close())
	}
	return errors.Join(errs...)
}

// newReport sums up the samples of cells.
func newReport(o Options, window time.Duration, list []cell, samples []samples) (*Report, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, fmt.Errorf("asking for the kernel's version: %w", err)
	}
	r := &Report{
		Kernel: unix.ByteSliceToString(uts.Release[:]), CPUs: runtime.NumCPU(),
		Rounds: o.Rounds, Seconds: window.Seconds(), NoOffloads: o.NoOffloads, Quick: o.Quick,
	}
	for i, c := range list {
		r.Loads = append(r.Loads, samples[i].result(c, Ways))
	}
	r.Findings = r.judge(Goals)
	return r, nil
}
