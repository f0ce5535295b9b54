package oracle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// settleBefore waits until the datapath agrees with the bridge, if that is in doubt for
// a frame.
func (p *pair) settleBefore(ctx context.Context, f *frame) error {
	switch {
	case p.unsettled:
		return p.settle(ctx)
	case touches(f, p.net.moved):
		return p.settleEntries()
	}
	return nil
}

// settle waits until the datapath agrees with the bridge.
func (p *pair) settle(ctx context.Context) error {
	if err := p.wait(func() error { return p.fast.awaitPorts(p.net.ports) }); err != nil {
		return p.late(err)
	}
	if p.net.bridging != nil {
		if err := p.wait(func() error { return p.fast.awaitVLANs(p.net.bridging) }); err != nil {
			return p.late(err)
		}
	}
	if err := p.settleEntries(); err != nil {
		return err
	}
	for i := range p.uncounted {
		if err := p.fast.beginCount(ctx, i); err != nil {
			return err
		}
		delete(p.uncounted, i)
	}
	p.unsettled = false
	return nil
}

// settleEntries waits until the datapath forwards by the bridge's table, and that
// is the plain host's. The daemon's refreshes may cross a change: an entry that
// was deleted in the same moment comes back, and is deleted again here; one that
// has moved goes back, until the daemon hears of the move and puts it right.
func (p *pair) settleEntries() error {
	if err := p.seeUplink(); err != nil {
		return err
	}
	clear(p.net.moved)
	crossed := false
	err := p.wait(func() error {
		return p.fast.await(func(context.Context) (string, error) {
			missing, err := p.fast.missingEntries()
			if err != nil || missing != "" {
				return missing, err
			}
			d, returned, err := p.compareTables()
			if err != nil || len(d) == 0 {
				return "", err
			}
			crossed = crossed || len(d) > len(returned)
			for key, e := range returned {
				p.report.Returned++
				if err := p.fast.lab.Host.Netlink().NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) {
					return "", fmt.Errorf("deleting %s again: %w", key, err)
				}
			}
			return d[0], nil
		})
	})
	if crossed {
		p.report.MovedBack++
	}
	if err != nil {
		return p.late(err)
	}
	return nil
}

// wait adds up how long waiting takes.
func (p *pair) wait(f func() error) error {
	begin := time.Now()
	err := f()
	p.report.Settling += time.Since(begin)
	p.report.Longest, p.report.LongestFor = p.fast.slowest, p.fast.slowestWhat
	return err
}

// late makes a difference of a datapath that does not follow.
func (p *pair) late(err error) error {
	if !errors.As(err, new(*lateError)) {
		return err
	}
	err = p.difference([]string{err.Error()})
	if d := (*Difference)(nil); errors.As(err, &d) {
		d.late = true
	}
	return err
}
