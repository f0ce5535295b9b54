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
	tcp   tcpCounters // of all stations together
	ports portCounters
	cpu   account.Reading
	busy  time.Duration
	at    time.Time
}

func (m *meter) read(h *host) (r reading, err error) {
	if r.tcp, err = h.readTCP(); err != nil {
		return r, err
	}
	if r.ports, err = h.readPorts(); err != nil {
		return r, err
	}
	if r.busy, err = readBusy(); err != nil {
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
	f[OtherCPUs] = max(0, float64(after.busy-before.busy)/float64(took)-f[HostCPUs]-f[EndsCPUs])
	f[HostPerIn] = over(float64(cpu), float64(after.ports.in-before.ports.in))
	f[FrameOut] = over(float64(after.ports.bytesOut-before.ports.bytesOut), float64(after.ports.out-before.ports.out))
	if goodput, ok := f[Goodput]; ok {
		kilobytes := goodput * 1e6 / 8 * took.Seconds() / 1e3
		f[HostPerKB] = over(float64(cpu), kilobytes)
		f[Retransmits] = float64(after.tcp.since(before.tcp, retransSegs))
		f[OutOfOrder] = float64(after.tcp.since(before.tcp, ofoQueue))
		f[DSACKs] = float64(after.tcp.since(before.tcp, dsackRecv))
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
