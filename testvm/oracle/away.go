package oracle

import (
	"context"
	"errors"
	"time"
)

// steadyPhase is how many frames go in while the daemon is away. No station
// moves then: the fast path would not hear of it.
const steadyPhase = 100

// restart has the daemon killed and started again under traffic.
func (p *pair) restart(ctx context.Context) error {
	if err := p.settle(ctx); err != nil {
		return err
	}
	p.gen.steady = true
	defer func() { p.gen.steady = false }()
	p.note("daemon killed")
	p.report.Changes["daemon killed"]++
	if err := p.fast.kill(); err != nil {
		return err
	}
	if err := p.batch(ctx, steadyPhase); err != nil {
		return err
	}
	p.note("daemon started")
	if err := p.fast.start(ctx); err != nil {
		return err
	}
	if err := p.batch(ctx, steadyPhase); err != nil {
		return err
	}
	return p.settle(ctx)
}

// silence stops the daemon for longer than the datapath's lease.
func (p *pair) silence(ctx context.Context) (err error) {
	if err := p.settle(ctx); err != nil {
		return err
	}
	s, err := p.fast.api.Status(ctx)
	if err != nil {
		return err
	}
	p.gen.steady = true
	defer func() { p.gen.steady = false }()
	p.note("daemon silent")
	p.report.Changes["daemon silent"]++
	if err := p.fast.stall(); err != nil {
		return err
	}
	resumed := false
	defer func() {
		if !resumed {
			err = errors.Join(err, p.fast.resume())
		}
	}()
	// Traffic goes on before and after the lease runs out, of which nothing tells.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Duration(s.Lease*float64(time.Second)) + 200*time.Millisecond); time.Now().Before(end); <-tick.C {
		if err := p.batch(ctx, steadyPhase/4); err != nil {
			return err
		}
	}
	if err := p.batch(ctx, steadyPhase); err != nil {
		return err
	}
	resumed = true
	if err := p.fast.resume(); err != nil {
		return err
	}
	return p.settle(ctx)
}
