package mix

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

const (
	datagramSize = 64 // bytes of payload
	// datagramBatch is how many a system call sends at most: fewer than the 256 that
	// a veth's ring takes.
	datagramBatch = 64
	maxArrears    = 4 * datagramBatch
	// sinkBuffer holds what comes while the reader is off its CPU, in bytes.
	sinkBuffer = 16 << 20
	// settleTime is how long nothing must come until the rest counts as lost.
	settleTime = 20 * time.Millisecond
)

// Datagrams is small UDP datagrams at a fixed rate.
type datagrams struct {
	window
	sender, sink *net.UDPConn
	sending      sync.WaitGroup
	receiving    sync.WaitGroup
	// counting tells the sender to mark datagrams, which the sink then counts.
	counting, ended atomic.Bool
	sent, received  atomic.Uint64
}

var _ load = (*datagrams)(nil)

func startDatagrams(from, to *lab.Node, v6 bool, rate int) (_ *datagrams, err error) {
	d := &datagrams{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("starting datagrams from %s to %s: %w", from.Name(), to.Name(), err), d.close())
		}
	}()
	if d.sink, err = openUDP(to, v6); err != nil {
		return nil, err
	}
	if d.sender, err = openUDP(from, v6); err != nil {
		return nil, err
	}
	raw, err := d.sink.SyscallConn()
	if err != nil {
		return nil, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sinkBuffer)
	})
	if err := errors.Join(ctlErr, err); err != nil {
		return nil, fmt.Errorf("enlarging the sink's buffer: %w", err)
	}
	d.receiving.Go(d.receive)
	d.sending.Go(func() { d.send(rate) })
	return d, nil
}

func openUDP(n *lab.Node, v6 bool) (*net.UDPConn, error) {
	addr, err := n.Addr(v6)
	if err != nil {
		return nil, err
	}
	c, err := n.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// messages gives room for a batch. The same type serves both families.
func messages(to net.Addr) []ipv4.Message {
	batch := make([]ipv4.Message, datagramBatch)
	for i := range batch {
		batch[i] = ipv4.Message{Buffers: [][]byte{make([]byte, datagramSize)}, Addr: to}
	}
	return batch
}

// send keeps to the rate on the average. What it is behind after a longer time off
// its CPU it leaves out: a burst would overrun any ring, whatever the way.
func (d *datagrams) send(rate int) {
	conn, batch := ipv4.NewPacketConn(d.sender), messages(d.sink.LocalAddr())
	began, sent, marked := time.Now(), 0, false
	for !d.ended.Load() {
		due := int(time.Since(began).Seconds()*float64(rate)) - sent
		if due > maxArrears {
			sent += due - datagramBatch
			due = datagramBatch
		}
		if due < datagramBatch/4 {
			time.Sleep(50 * time.Microsecond)
			continue
		}
		if mark := d.counting.Load(); mark != marked {
			marked = mark
			for _, m := range batch {
				m.Buffers[0][0] = 0
				if mark {
					m.Buffers[0][0] = 1
				}
			}
		}
		n, err := conn.WriteBatch(batch[:min(due, datagramBatch)], 0)
		if err != nil {
			return
		}
		sent += n
		if marked {
			d.sent.Add(uint64(n))
		}
	}
}

func (d *datagrams) receive() {
	conn, batch := ipv4.NewPacketConn(d.sink), messages(nil)
	for {
		n, err := conn.ReadBatch(batch, 0)
		if err != nil {
			return
		}
		var marked uint64
		for _, m := range batch[:n] {
			marked += uint64(m.Buffers[0][0])
		}
		d.received.Add(marked)
	}
}

func (d *datagrams) begin() {
	d.window.begin()
	d.counting.Store(true)
}

func (d *datagrams) end() {
	d.counting.Store(false)
	d.window.end()
}

func (d *datagrams) report(f Figures) {
	d.ended.Store(true)
	d.sending.Wait()
	for last := uint64(0); ; {
		time.Sleep(settleTime)
		now := d.received.Load()
		if now == last {
			break
		}
		last = now
	}
	sent, received := d.sent.Load(), d.received.Load()
	f[Offered], f[Datagrams] = d.perSecond(sent), d.perSecond(received)
	f[Loss] = 1 - float64(received)/float64(max(1, sent))
}

func (d *datagrams) close() error {
	d.ended.Store(true)
	var errs []error
	for _, c := range []*net.UDPConn{d.sender, d.sink} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	d.sending.Wait()
	d.receiving.Wait()
	return errors.Join(errs...)
}
