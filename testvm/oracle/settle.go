package oracle

import (
	"context"
	"fmt"
	"time"
)

// settle waits until the datapath agrees with the bridge.
func (p *pair) settle(ctx context.Context) error {
	if err := p.wait(func() error { return p.fast.awaitPorts(p.net.ports) }); err != nil {
		return err
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
	return nil
}

// settleEntries waits until the datapath forwards by the bridge's table, and
// that is the plain host's. Entries that were deleted while the daemon refreshed
// them come back; they are deleted again.
func (p *pair) settleEntries() error {
	return p.wait(func() error {
		for {
			if err := p.fast.awaitEntries(); err != nil {
				return err
			}
			d, returned, err := p.compareTables()
			if err != nil {
				return err
			}
			if len(d) != len(returned) {
				return p.difference(d)
			}
			if len(d) == 0 {
				return nil
			}
			for key, e := range returned {
				p.report.Returned++
				p.note(fmt.Sprintf("entry for %s on %s deleted again on the fast host", key.mac, p.fast.device(e.LinkIndex)))
				if err := p.fast.lab.Host.Netlink().NeighDel(&e); err != nil {
					return fmt.Errorf("deleting %s again: %w", key.mac, err)
				}
			}
		}
	})
}

// wait adds up how long waiting takes.
func (p *pair) wait(f func() error) error {
	begin := time.Now()
	err := f()
	p.report.Settling += time.Since(begin)
	p.report.Longest, p.report.LongestFor = p.fast.slowest, p.fast.slowestWhat
	return err
}
