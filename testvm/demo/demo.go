// Package demo shows the fast path at work beside the plain bridge: a host, a
// wire and two guests of package lab, the real daemon, and a check of each thing
// that a switch has to do. All numbers come from the receiving stacks and from
// the counters of the kernel and the daemon.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// Options say what is shown. Daemon must be set.
type Options struct {
	// Daemon is the path of the tapswitchd to run.
	Daemon string
	// Quick leaves out what a frame costs, and makes each transfer once instead
	// of taking the median of several.
	Quick bool
	// Progress, if not nil, is told what is being done, in lines with the seconds
	// since the beginning.
	Progress io.Writer
}

const (
	// startWithin bounds the start of a daemon, which takes a fraction of a second.
	startWithin = 20 * time.Second

	// longLease leaves time to start another daemon on a busy machine.
	longLease = 5 * time.Second
	// shortLease is the shortest that the daemon takes.
	shortLease = 500 * time.Millisecond
)

// A scenario is one run.
type scenario struct {
	Options
	*lab.Lab
	progress *progress
	report   *Report

	daemon *lab.Daemon
	api    *control.Client
	base   rxFrames // when the daemon attached
	// transfers are in the report when they were made by each way.
	transfers []Transfer
	// What was lost at each port before the daemon attached, and in transfers since.
	lostAtStart, lostInTransfers map[string]lost
}

// Run shows all, in about a minute, or 10 s with Options.Quick. It is to be run
// after lab.Isolate.
//
// What is not as it should be is in the report, which says by its name which
// check has failed. The error, which stands in the report too, tells what kept
// the run from going on; the report then has what was seen until then. When ctx
// ends, the error is ctx's.
func Run(ctx context.Context, o Options) (*Report, error) {
	s := &scenario{Options: o, progress: newProgress(o.Progress), report: newReport()}
	err := s.run(ctx)
	if ctx.Err() != nil {
		err = ctx.Err() // the rest follows from it
	}
	s.report.finish(s.progress.elapsed(), err)
	return s.report, err
}

func (s *scenario) run(ctx context.Context) error {
	if err := s.inLab(ctx); err != nil || s.Quick {
		return err
	}
	// Without the lab, whose stacks send frames of their own now and then.
	return s.measureFrames(ctx)
}

// inLab does all that needs the host and its guests.
func (s *scenario) inLab(ctx context.Context) (err error) {
	s.progress.step("building a host with a bridge, a wire and two guests")
	if s.Lab, err = lab.New(lab.Options{Guests: 2, NICGRO: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Lab.Close()) }()
	defer func() { err = errors.Join(err, s.endDaemon()) }()
	for _, step := range []func(context.Context) error{
		s.transferByBridge,
		s.startFirst,
		s.reach,
		s.transferByTapswitch,
		s.takeOver,
		s.outlive,
		s.account,
		s.stop,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// startFirst starts the first daemon.
func (s *scenario) startFirst(ctx context.Context) error {
	s.progress.step("starting tapswitchd")
	before, err := s.readRxFrames()
	if err != nil {
		return err
	}
	if err := s.start(ctx, longLease); err != nil {
		return err
	}
	after, err := s.readRxFrames()
	if err != nil {
		return err
	}
	s.base = before.until(after)
	if s.lostAtStart, err = s.readLost(ctx); err != nil {
		return err
	}
	return s.lookAtPorts(ctx)
}

// start starts a daemon, which adopts what one before it left.
func (s *scenario) start(ctx context.Context, lease time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	d, err := s.Host.StartDaemon(ctx, lab.DaemonOptions{
		Path:   s.Daemon,
		Config: fmt.Sprintf("%s\nlease = %q", lab.NICConfig, lease),
	})
	if err != nil {
		return fmt.Errorf("starting the daemon %s: %w", s.Daemon, err)
	}
	s.daemon, s.api = d, control.Dial(d.Socket)
	return nil
}

// kill ends the daemon by SIGKILL.
func (s *scenario) kill() error {
	s.api.Close()
	return s.daemon.Kill()
}

// endDaemon makes sure that no daemon is left when a run ends early.
func (s *scenario) endDaemon() error {
	if s.daemon == nil {
		return nil
	}
	s.api.Close()
	return s.daemon.Kill()
}
