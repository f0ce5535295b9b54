package oracle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// episodeFrames is how many frames go into a pair of hosts before it makes room for
// another, with a configuration of its own.
const episodeFrames = 20000

// batchFrames is how many frames go in at most between two comparisons, and
// uplinkFrames how many of them by the uplink: a veth with XDP takes 256 at a time.
const (
	batchFrames  = 400
	uplinkFrames = 200
)

// A run sends random frames into a pair of hosts.
type run struct {
	*pair
	gen      *generator
	attended bool
	done     []step // since the hosts were made
}

// Run compares the two ways of a bridge, by as many frames and by changes that come out
// of the source. An error that is a *Difference says that they differ; the case is then
// what led there.
func Run(ctx context.Context, o Options, source rand.Source, frames int) (_ Report, _ *Case, err error) {
	begin := time.Now()
	p, err := newPair(ctx, o)
	if err != nil {
		return Report{}, nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	r := &run{pair: p, gen: newGenerator(source, o, p.net), attended: o.Attended}
	if err := r.run(ctx, frames); err != nil {
		return Report{}, &Case{Options: o, Steps: r.done}, fmt.Errorf("after %d frames: %w", p.report.Frames, err)
	}
	p.report.Elapsed = time.Since(begin)
	return p.report, nil, nil
}

func (r *run) do(ctx context.Context, s step) error {
	r.done = append(r.done, s)
	return r.pair.do(ctx, s)
}

func (r *run) run(ctx context.Context, frames int) error {
	for _, c := range r.gen.configuration() {
		if err := r.do(ctx, step{Change: c}); err != nil {
			return err
		}
	}
	restartAt := frames / 2
	for r.report.Frames < frames {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.batch(ctx, min(1+r.gen.IntN(batchFrames), frames-r.report.Frames)); err != nil {
			return err
		}
		if err := r.someChanges(ctx); err != nil {
			return err
		}
		if !r.attended && r.report.Frames >= restartAt {
			restartAt += frames
			if err := r.restart(ctx); err != nil {
				return err
			}
		}
	}
	if !r.attended {
		if err := r.silence(ctx); err != nil {
			return err
		}
	}
	return r.finish(ctx)
}

// batch sends frames into both hosts and compares what comes out.
func (r *run) batch(ctx context.Context, frames int) error {
	for byUplink := 0; frames > 0 && byUplink < uplinkFrames; frames-- {
		f := r.gen.next()
		if f.port == uplink {
			byUplink++
		}
		if err := r.do(ctx, step{Frame: f}); err != nil {
			return err
		}
	}
	return r.do(ctx, steer("compare"))
}

// someChanges makes some, after which the datapath is mostly waited for.
func (r *run) someChanges(ctx context.Context) error {
	n := 10
	if r.net.bridging != nil { // there is more to change
		n = 14
	}
	for range r.gen.IntN(n) {
		c := r.gen.change()
		if c == nil {
			continue
		}
		if err := r.do(ctx, step{Change: c}); err != nil {
			return err
		}
		if r.gen.chance(30) {
			if err := r.do(ctx, steer("wait for the datapath")); err != nil {
				return err
			}
		}
	}
	return nil
}

// configuration gives the changes that make the hosts' configuration.
func (g *generator) configuration() (list []*change) {
	if b := g.network.bridging; b != nil {
		if g.chance(40) {
			list = append(list, &change{Do: "VLAN protocol", Port: theBridge, VLAN: unix.ETH_P_8021AD})
		}
		for i := range specs {
			list = append(list, &change{Do: "VLANs of port", Port: portNumber(i), VLANs: g.randomVLANs()})
		}
	}
	for range g.IntN(6) {
		if f := setting(g.IntN(int(settings))); g.chance(50) {
			list = append(list, &change{Do: "port setting", Port: portNumber(g.IntN(len(specs))), Setting: &f, On: g.chance(50)})
		}
	}
	return list
}
