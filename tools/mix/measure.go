package mix

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/mix/account"
)

// A reading is all that is counted outside of the loads.
type reading struct {
	tcp   TCPCounters // of all stations together
	ports portCounters
	cpu   account.Reading
	at    time.Time
}

func (m *meter) read(h *host) (r reading, err error) {
	r.tcp = TCPCounters{}
	for _, n := range h.stations() {
		c, err := readTCP(n)
		if err != nil {
			return r, err
		}
		for name, v := range c {
			r.tcp[name] += v
		}
	}
	if r.ports, err = h.readPorts(); err != nil {
		return r, err
	}
	r.at = time.Now()
	r.cpu, err = m.account.Read()
	return r, err
}

// stations gives the wire and the guests.
func (h *host) stations() []*lab.Node {
	nodes := []*lab.Node{h.Wire}
	for _, g := range h.Guests {
		nodes = append(nodes, g.Node)
	}
	return nodes
}

// A meter measures loads.
type meter struct {
	hosts        []*host
	account      *account.Account
	warmUp, time time.Duration
}

// measure runs a load on a host, by the index of its way.
func (m *meter) measure(ctx context.Context, c cell, way int) (f Figures, err error) {
	h := m.hosts[way]
	list, err := c.start(h, c.v6)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll(list)) }()
	if err := sleep(ctx, m.warmUp); err != nil {
		return nil, err
	}
	before, err := m.read(h)
	if err != nil {
		return nil, err
	}
	for _, l := range list {
		l.begin()
	}
	if err := sleep(ctx, m.time); err != nil {
		return nil, err
	}
	for _, l := range list {
		l.end()
	}
	after, err := m.read(h)
	if err != nil {
		return nil, err
	}
	f = Figures{}
	for _, l := range list {
		l.report(f)
	}
	f.addReadings(before, after, way)
	return f, nil
}

// addReadings adds what was counted outside of the loads.
func (f Figures) addReadings(before, after reading, way int) {
	took := after.at.Sub(before.at)
	cpu := after.cpu.Hosts[way] - before.cpu.Hosts[way]
	f[HostCPUs] = float64(cpu) / float64(took)
	f[EndsCPUs] = float64(after.cpu.Ends-before.cpu.Ends) / float64(took)
	f[HostPerIn] = over(float64(cpu), float64(after.ports.in-before.ports.in))
	f[FrameOut] = over(float64(after.ports.bytesOut-before.ports.bytesOut), float64(after.ports.out-before.ports.out))
	if goodput, ok := f[Goodput]; ok {
		kilobytes := goodput * 1e6 / 8 * took.Seconds() / 1e3
		f[HostPerKB] = over(float64(cpu), kilobytes)
		since := func(names ...string) (n float64) {
			for _, name := range names {
				n += float64(after.tcp[name] - before.tcp[name])
			}
			return n
		}
		f[Retransmits] = since(retransSegs)
		f[OutOfOrder] = since(ofoQueue)
		f[DSACKs] = since(dsackRecv)
	}
}

// over divides, and gives 0 for nothing by nothing.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("waiting for a load: %w", ctx.Err())
	case <-time.After(d):
		return nil
	}
}
