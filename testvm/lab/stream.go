package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultRate   = 1000
	defaultSize   = 64
	defaultWindow = 256
	defaultGrace  = time.Second

	minStreamSize = 16              // the stream's number and the datagram's
	warmUpNumber  = ^uint64(0)      // of datagrams that find the way, and don't count
	warmUpWithin  = 5 * time.Second // for address resolution on a busy machine

	// socketBuffer is more than a window of the largest datagrams takes.
	socketBuffer = 32 << 20

	// tick is how often a stream sends: often enough for small bursts, and seldom
	// enough for the timers of a busy machine.
	tick = time.Millisecond
	// stalledAfter is how long a full window holds a stream back. Then the path
	// is taken for broken, not slow, and the stream goes on at its rate.
	stalledAfter = 500 * time.Millisecond
)

// StreamOptions says what a stream sends. The zero value is 1000 datagrams of
// 64 B per second over IPv4.
type StreamOptions struct {
	// To is the receiving node's address; none means its first global IPv4 one.
	To netip.Addr
	// Rate in datagrams per second; 0 means 1000. Streams are exact up to 10000 on
	// two busy CPUs.
	Rate int
	// Size of the UDP payload in bytes, at least 16; 0 means 64.
	Size int
	// Window is how many datagrams may be on the way, 0 means 256. The stream
	// pauses when the window is full, so that a CPU that stops for a while can't
	// overrun a tap's ring (1000 frames) or a veth's (256 frames under XDP), and
	// catches up later at up to four times its rate. After half a second without
	// an arrival it sends on regardless, so that a broken path shows as loss.
	Window int
	// Grace is how long Stop waits for another datagram before it takes the rest
	// for lost; 0 means 1 s.
	Grace time.Duration
	// Cold starts at once. Otherwise some datagrams that don't count go first,
	// until one has arrived, so that the neighbours' and the bridge's tables are
	// filled.
	Cold bool
}

// StreamReport says what became of a stream's datagrams.
type StreamReport struct {
	Sent       uint64
	Received   uint64 // without duplicates
	Lost       uint64 // Sent - Received
	Duplicated uint64 // copies beyond the first
	Reordered  uint64 // came after one that was sent later
	Damaged    uint64 // came with another content; not in Received
	Refused    uint64 // attempts to send that the sender's kernel refused; not in Sent
	Elapsed    time.Duration
}

// Stream is a flow of numbered UDP datagrams from one node to another.
type Stream struct {
	opts    StreamOptions
	id      uint64
	payload []byte // what each datagram carries, but for its number
	to      netip.AddrPort
	out, in *net.UDPConn

	sent     atomic.Uint64
	received atomic.Uint64
	head     atomic.Uint64 // one above the highest number that arrived
	finished atomic.Bool   // nothing will be sent any more

	arrival  chan struct{} // holds a token after each arrival; for the sender
	warm     chan struct{} // closed at the first arrival
	stop     chan struct{}
	sending  sync.WaitGroup
	reading  sync.WaitGroup
	stopping sync.Once
	started  time.Time
	broken   bool // the sender's: nothing came back in time, so the window is ignored

	mu      sync.Mutex
	waiting map[chan struct{}]uint64 // by WaitReceived, with the numbers they wait for

	report StreamReport // the receiver's and the sender's fields are their own until Stop
}

// StartStream starts a stream between two nodes. Unless opts.Cold is set, it
// fails if nothing reaches the receiver within 5 s.
func StartStream(from, to *Node, opts StreamOptions) (*Stream, error) {
	s, err := openStream(from, to, opts)
	if err != nil {
		return nil, fmt.Errorf("starting a stream from %s to %s: %w", from.name, to.name, err)
	}
	s.reading.Go(s.receive)
	if !opts.Cold {
		if err := s.warmUp(); err != nil {
			s.Stop()
			return nil, fmt.Errorf("starting a stream from %s to %s: %w", from.name, to.name, err)
		}
	}
	s.started = time.Now()
	s.sending.Go(s.send)
	return s, nil
}

func openStream(from, to *Node, opts StreamOptions) (*Stream, error) {
	if opts.Rate == 0 {
		opts.Rate = defaultRate
	}
	if opts.Size == 0 {
		opts.Size = defaultSize
	}
	if opts.Window == 0 {
		opts.Window = defaultWindow
	}
	if opts.Grace == 0 {
		opts.Grace = defaultGrace
	}
	if opts.Rate < 0 || opts.Window < 0 || opts.Size < minStreamSize {
		return nil, fmt.Errorf("rate %d, window %d or size %d is too small", opts.Rate, opts.Window, opts.Size)
	}
	if !opts.To.IsValid() {
		var err error
		if opts.To, err = to.Addr(false); err != nil {
			return nil, err
		}
	}
	s := &Stream{
		opts:    opts,
		id:      rand.Uint64(),
		payload: make([]byte, opts.Size),
		arrival: make(chan struct{}, 1),
		warm:    make(chan struct{}),
		stop:    make(chan struct{}),
		waiting: make(map[chan struct{}]uint64),
	}
	binary.BigEndian.PutUint64(s.payload, s.id)
	for i := minStreamSize; i < len(s.payload); i++ {
		s.payload[i] = byte(i)
	}
	var err error
	if s.in, err = to.listenUDP(netip.AddrPortFrom(opts.To, 0)); err != nil {
		return nil, err
	}
	any := netip.IPv4Unspecified()
	if opts.To.Is6() {
		any = netip.IPv6Unspecified()
	}
	// Not connected: an ICMP error must not end the stream.
	if s.out, err = from.listenUDP(netip.AddrPortFrom(any, 0)); err != nil {
		s.in.Close()
		return nil, err
	}
	s.to = netip.AddrPortFrom(opts.To, s.in.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	return s, nil
}

// listenUDP opens a UDP socket with large buffers.
func (n *Node) listenUDP(at netip.AddrPort) (*net.UDPConn, error) {
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	c, err := n.ListenPacket(network, at.String())
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UDPConn)
	raw, err := conn.SyscallConn()
	if err == nil {
		ctlErr := raw.Control(func(fd uintptr) { err = growBuffers(int(fd)) })
		err = errors.Join(err, ctlErr)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// growBuffers gives a socket buffers of socketBuffer bytes, past the system's limits.
func growBuffers(fd int) error {
	for _, opt := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, socketBuffer); err != nil {
			return fmt.Errorf("growing a socket's buffers: %w", err)
		}
	}
	return nil
}

// warmUp sends datagrams that don't count until one has arrived.
func (s *Stream) warmUp() error {
	datagram := bytes.Clone(s.payload)
	binary.BigEndian.PutUint64(datagram[8:], warmUpNumber)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	end := time.After(warmUpWithin)
	var sendErr error
	for {
		_, sendErr = s.out.WriteToUDPAddrPort(datagram, s.to)
		select {
		case <-s.warm:
			return nil
		case <-again.C:
		case <-end:
			return errors.Join(fmt.Errorf("no datagram reached %v within %v", s.to, warmUpWithin), sendErr)
		}
	}
}

// send sends by an absolute schedule, so that lateness doesn't add up.
func (s *Stream) send() {
	datagram := bytes.Clone(s.payload)
	perTick := max(1, 4*s.opts.Rate*int(tick)/int(time.Second)) // leaves room to catch up
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-wake.C:
		}
		due := 1 + uint64(time.Since(s.started).Seconds()*float64(s.opts.Rate))
		for range perTick {
			number := s.sent.Load()
			if number >= due {
				break
			}
			if !s.awaitWindow(number) {
				return
			}
			binary.BigEndian.PutUint64(datagram[8:], number)
			// Counted first: it can arrive before the call returns.
			s.sent.Store(number + 1)
			if _, err := s.out.WriteToUDPAddrPort(datagram, s.to); err != nil {
				s.sent.Store(number)
				if !errors.Is(err, os.ErrDeadlineExceeded) { // which Stop sets
					s.report.Refused++
				}
				break
			}
		}
		next := s.started.Add(time.Duration(float64(s.sent.Load()) / float64(s.opts.Rate) * float64(time.Second)))
		wake.Reset(max(tick, time.Until(next)))
	}
}

// awaitWindow waits until another datagram may be on the way, and says false if
// the stream was stopped meanwhile.
func (s *Stream) awaitWindow(number uint64) bool {
	if number-s.head.Load() < uint64(s.opts.Window) {
		s.broken = false
		return true
	}
	if s.broken {
		return true
	}
	stalled := time.NewTimer(stalledAfter)
	defer stalled.Stop()
	for number-s.head.Load() >= uint64(s.opts.Window) {
		select {
		case <-s.arrival:
		case <-stalled.C:
			s.broken = true
			return true
		case <-s.stop:
			return false
		}
	}
	return true
}

// receive counts what arrives, until the deadline that settle sets.
func (s *Stream) receive() {
	var (
		seen   []uint64 // a bit for each number
		warm   bool
		buffer = make([]byte, 1<<16)
	)
	for {
		n, err := s.in.Read(buffer)
		if err != nil {
			return
		}
		b := buffer[:n]
		if n < minStreamSize || binary.BigEndian.Uint64(b) != s.id {
			s.report.Damaged++ // nobody else knows the port
			continue
		}
		number := binary.BigEndian.Uint64(b[8:])
		if number == warmUpNumber {
			if !warm {
				warm = true
				close(s.warm)
			}
			continue
		}
		if number >= s.sent.Load() || n != len(s.payload) || !bytes.Equal(b[minStreamSize:], s.payload[minStreamSize:]) {
			s.report.Damaged++
			continue
		}
		word, bit := number/64, uint64(1)<<(number%64)
		for uint64(len(seen)) <= word {
			seen = append(seen, 0)
		}
		if seen[word]&bit != 0 {
			s.report.Duplicated++
			continue
		}
		seen[word] |= bit
		if head := s.head.Load(); number >= head {
			s.head.Store(number + 1)
		} else {
			s.report.Reordered++
		}
		s.received.Add(1)
		s.tell()
		if s.finished.Load() {
			s.settle()
		}
	}
}

// tell wakes those who wait for arrivals.
func (s *Stream) tell() {
	select {
	case s.arrival <- struct{}{}:
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for waiter, number := range s.waiting {
		if s.received.Load() >= number {
			close(waiter)
			delete(s.waiting, waiter)
		}
	}
}

// settle sets when the receiver gives up, once all was sent: soon if all has
// arrived, for there may be a copy still, or else after the grace time. Only new
// arrivals put it off, so it ends.
func (s *Stream) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := s.opts.Grace
	if s.received.Load() == s.sent.Load() {
		wait = min(wait, 5*time.Millisecond)
	}
	s.in.SetReadDeadline(time.Now().Add(wait))
}

// Sent gives the number of datagrams sent so far.
func (s *Stream) Sent() uint64 { return s.sent.Load() }

// Received gives the number of datagrams that have arrived so far, without
// duplicates.
func (s *Stream) Received() uint64 { return s.received.Load() }

// WaitReceived waits until n more datagrams have arrived than at the time of the
// call, or ctx ends.
func (s *Stream) WaitReceived(ctx context.Context, n uint64) error {
	if n == 0 {
		return nil
	}
	arrived := make(chan struct{})
	s.mu.Lock()
	s.waiting[arrived] = s.received.Load() + n
	s.mu.Unlock()
	select {
	case <-arrived:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.waiting, arrived)
		s.mu.Unlock()
		return fmt.Errorf("waiting for %d datagrams of a stream: %w", n, ctx.Err())
	}
}

// Stop ends the stream and says what became of it, after all has arrived or
// nothing more did for the grace time. Stopping again gives the same report.
func (s *Stream) Stop() StreamReport {
	s.stopping.Do(func() {
		close(s.stop)
		s.out.SetWriteDeadline(time.Unix(1, 0))
		s.sending.Wait()
		if !s.started.IsZero() {
			s.report.Elapsed = time.Since(s.started)
		}
		s.finished.Store(true)
		s.settle()
		s.reading.Wait()
		s.out.Close()
		s.in.Close()
		s.report.Sent = s.sent.Load()
		s.report.Received = s.received.Load()
		s.report.Lost = s.report.Sent - s.report.Received
	})
	return s.report
}
