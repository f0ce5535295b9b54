package oracle

import (
	"context"
	"errors"
	"time"
)

// controls are the steps by which a case steers the oracle and the daemon.
var controls = []changeKind{
	{"wait for the datapath", 0, nil, (*pair).settleNow},
	{"compare", 0, nil, (*pair).compareNow},
	{"kill daemon", 0, nil, (*pair).killDaemon},
	{"start daemon", 0, nil, (*pair).startDaemon},
	{"stop daemon", 0, nil, (*pair).stopDaemon},
	{"continue daemon", 0, nil, (*pair).continueDaemon},
	{"pause", 0, nil, (*pair).pause},
}

// steer gives a step of that kind.
func steer(do string) step { return step{Change: &change{Do: do, Port: theBridge}} }

func (p *pair) settleNow(ctx context.Context, _ *change) (done, moves bool, err error) {
	if p.away != "" {
		return false, false, nil
	}
	return true, false, p.settle(ctx)
}

func (p *pair) compareNow(context.Context, *change) (done, moves bool, err error) {
	return true, false, p.compare()
}

// While the daemon is away, no station moves and nothing changes: the fast path would
// not hear of it.
const (
	killed  = "killed"
	stopped = "stopped"
)

func (p *pair) killDaemon(ctx context.Context, _ *change) (done, moves bool, err error) {
	return p.leave(ctx, killed, p.fast.kill)
}

// stopDaemon keeps the daemon from renewing the datapath's lease.
func (p *pair) stopDaemon(ctx context.Context, _ *change) (done, moves bool, err error) {
	return p.leave(ctx, stopped, p.fast.stall)
}

func (p *pair) leave(ctx context.Context, how string, leave func() error) (done, moves bool, err error) {
	if p.away != "" {
		return false, false, nil
	}
	if err := p.settle(ctx); err != nil {
		return false, false, err
	}
	p.away = how
	return true, false, leave()
}

// startDaemon starts another, which adopts the datapath.
func (p *pair) startDaemon(ctx context.Context, _ *change) (done, moves bool, err error) {
	return p.comeBack(killed, func() error { return p.fast.start(ctx) })
}

func (p *pair) continueDaemon(context.Context, *change) (done, moves bool, err error) {
	return p.comeBack(stopped, p.fast.resume)
}

func (p *pair) comeBack(from string, comeBack func() error) (done, moves bool, err error) {
	if p.away != from {
		return false, false, nil
	}
	p.away = ""
	return true, true, comeBack()
}

// back brings the daemon back from wherever it is.
func (p *pair) back(ctx context.Context) error {
	_, _, err := p.startDaemon(ctx, nil)
	_, _, err2 := p.continueDaemon(ctx, nil)
	return errors.Join(err, err2)
}

// pauseLength is how long a pause is. Nothing tells when a lease has run out.
const pauseLength = 100 * time.Millisecond

func (p *pair) pause(ctx context.Context, _ *change) (done, moves bool, err error) {
	select {
	case <-time.After(pauseLength):
	case <-ctx.Done():
	}
	return true, false, nil
}

// steadyPhase is how many frames go in while the daemon is away, and as many when it is
// back.
const steadyPhase = 100

// restart has the daemon killed and started again under traffic.
func (r *run) restart(ctx context.Context) error {
	r.gen.steady = true
	defer func() { r.gen.steady = false }()
	r.report.Changes["daemon killed"]++
	for _, do := range []string{"kill daemon", "start daemon"} {
		if err := r.do(ctx, steer(do)); err != nil {
			return err
		}
		if err := r.batch(ctx, steadyPhase); err != nil {
			return err
		}
	}
	return nil
}

// silence stops the daemon for longer than the datapath's lease. Traffic goes on before
// and after it runs out.
func (r *run) silence(ctx context.Context) error {
	s, err := r.fast.api.Status(ctx)
	if err != nil {
		return err
	}
	r.gen.steady = true
	defer func() { r.gen.steady = false }()
	r.report.Changes["daemon silent"]++
	if err := r.do(ctx, steer("stop daemon")); err != nil {
		return err
	}
	lease := time.Duration(s.Lease * float64(time.Second))
	for range lease/pauseLength + 3 {
		if err := r.batch(ctx, steadyPhase/4); err != nil {
			return err
		}
		if err := r.do(ctx, steer("pause")); err != nil {
			return err
		}
	}
	if err := r.batch(ctx, steadyPhase); err != nil {
		return err
	}
	return r.do(ctx, steer("continue daemon"))
}
