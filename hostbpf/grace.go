package hostbpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// A graveyard keeps things that programs running right now may still be looking
// at until they no longer can, and then gives them back for use again.
//
// The kernel has no call that waits for running programs by name, but an update
// of a map of maps does so before it returns, which is part of its contract
// since Linux 4.20 (maybe_wait_bpf_programs). membarrier(2) would wait too, but
// refuses on machines with nohz_full, which hosts of guests often are.
type graveyard struct {
	outer, inner *ebpf.Map
	fresh        []func() // buried since the last wait began
	waiting      []func() // buried before it
	busy         bool
	ended        chan struct{} // closed when the wait under way has ended
	failed       error         // its result, once it has
}

func newGraveyard() (*graveyard, error) {
	inner := &ebpf.MapSpec{Name: "grace_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	in, err := ebpf.NewMap(inner)
	if err != nil {
		return nil, fmt.Errorf("making the inner map of a grace period: %w", err)
	}
	out, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "grace", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner,
	})
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("making the outer map of a grace period: %w", err)
	}
	return &graveyard{outer: out, inner: in}, nil
}

// wait returns when every program that was running at its call has ended: some
// 10 to 50 ms.
func (g *graveyard) wait() error {
	if err := g.outer.Put(uint32(0), g.inner); err != nil {
		return fmt.Errorf("waiting for running programs: %w", err)
	}
	return nil
}

// bury has release called by a later tick, when no program that is running now
// is still running.
func (g *graveyard) bury(release func()) { g.fresh = append(g.fresh, release) }

// tick releases what has waited long enough, and begins to wait for the rest
// beside the caller. Whoever buries calls it now and then.
func (g *graveyard) tick() error {
	if g.busy {
		select {
		case <-g.ended:
			g.busy = false
			if g.failed != nil {
				g.fresh, g.waiting = append(g.waiting, g.fresh...), nil
				return g.failed
			}
		default:
			return nil
		}
		for _, release := range g.waiting {
			release()
		}
		g.waiting = nil
	}
	if len(g.fresh) == 0 {
		return nil
	}
	g.fresh, g.waiting, g.busy = nil, g.fresh, true
	g.ended = make(chan struct{})
	go func() {
		defer close(g.ended)
		g.failed = g.wait()
	}()
	return nil
}

func (g *graveyard) close() {
	if g.busy {
		<-g.ended // the wait under way uses the maps
	}
	g.outer.Close()
	g.inner.Close()
}
