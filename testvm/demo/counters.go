package demo

import (
	"context"
	"fmt"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// counters are the frames that came in by each port, by verdict.
type counters map[string]map[vswitch.Verdict]uint64

// readCounters asks the daemon.
func (s *scenario) readCounters(ctx context.Context) (counters, error) {
	stats, err := s.api.Stats(ctx)
	if err != nil {
		return nil, err
	}
	return newCounters(stats), nil
}

func newCounters(stats []control.Stats) counters {
	c := counters{}
	for _, port := range stats {
		c[port.Port] = map[vswitch.Verdict]uint64{}
		for _, v := range port.Verdicts {
			c[port.Port][v.Verdict] = v.Frames
		}
	}
	return c
}

// since gives what was counted after before. What counts less than before has
// begun anew, because its datapath was made again.
func (c counters) since(before counters) counters {
	d := counters{}
	for port, verdicts := range c {
		d[port] = map[vswitch.Verdict]uint64{}
		for v, n := range verdicts {
			d[port][v] = n
			if was := before[port][v]; was <= n {
				d[port][v] -= was
			}
		}
	}
	return d
}

// sum gives all frames of a port.
func (c counters) sum(port string) (n uint64) {
	for _, frames := range c[port] {
		n += frames
	}
	return n
}

// split gives the frames of all ports that went by the fast path, and those that
// were left to the bridge.
func (c counters) split() (fast, passed uint64) {
	for port, verdicts := range c {
		fast += verdicts[vswitch.Redirected]
		passed += c.sum(port) - verdicts[vswitch.Redirected]
	}
	return fast, passed
}

// rxFrames are the least and the most frames that the kernel may have received by
// each port at some moment between two looks.
type rxFrames map[string][2]uint64

// readRxFrames asks the kernel.
func (s *scenario) readRxFrames() (rxFrames, error) {
	r := rxFrames{}
	for _, port := range s.ports() {
		l, err := s.Host.Link(port)
		if err != nil {
			return nil, fmt.Errorf("reading the counters of %s: %w", port, err)
		}
		n := l.Attrs().Statistics.RxPackets
		r[port] = [2]uint64{n, n}
	}
	return r, nil
}

// until gives the bounds for a moment between r and a later look.
func (r rxFrames) until(later rxFrames) rxFrames {
	b := rxFrames{}
	for port, n := range r {
		b[port] = [2]uint64{n[0], later[port][1]}
	}
	return b
}

// readTxDropped asks the kernel how many frames it has dropped that were to leave
// by a port.
func (s *scenario) readTxDropped(port string) (uint64, error) {
	l, err := s.Host.Link(port)
	if err != nil {
		return 0, fmt.Errorf("reading the counters of %s: %w", port, err)
	}
	return l.Attrs().Statistics.TxDropped, nil
}

// ports gives the names of the host's ports.
func (s *scenario) ports() []string {
	names := []string{lab.NIC}
	for _, g := range s.Guests {
		names = append(names, g.Port)
	}
	return names
}
