package mix

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

const (
	// ackChunk is two full segments, which the receiver acknowledges at once
	// (RFC 9293, 3.8.6.3), in bytes.
	ackChunk = 2 * 1448
	// ackRate is how many such chunks all flows together send per second.
	ackRate = 10_000
	// ackBurst is how many it sends in a millisecond at most, when it has been off its
	// CPU: two segments each, which the receiver's backlog of 1000 frames has room for.
	ackBurst = 40
)

// Acks is many flows that each send little, so that what comes back to their
// sender is acknowledgements of many flows.
type acks struct {
	*streams
	ended atomic.Bool
	done  chan error
}

var _ load = (*acks)(nil)

func startAcks(from, to *lab.Node, v6 bool, flows int) (*acks, error) {
	s, err := connect(from, to, v6, flows)
	if err != nil {
		return nil, err
	}
	a := &acks{streams: s, done: make(chan error, 2)}
	go func() {
		b := make([]byte, 64<<10)
		a.done <- serve(s.to, func(i int) bool {
			n, err := unix.Read(s.to[i], b)
			return n > 0 || errors.Is(err, unix.EINTR)
		})
	}()
	go func() { a.done <- a.send() }()
	return a, nil
}

// send writes a chunk into each flow in turn. A flow that is full is left out.
func (a *acks) send() error {
	chunk := make([]byte, ackChunk)
	began, turn := time.Now(), 0
	for !a.ended.Load() {
		due := int(time.Since(began).Seconds() * ackRate)
		for end := min(due, turn+ackBurst); turn < end; turn++ {
			_, _ = unix.SendmsgN(a.from[turn%len(a.from)], chunk, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (a *acks) begin()         {}
func (a *acks) end()           {}
func (a *acks) report(Figures) {}

func (a *acks) close() error {
	a.ended.Store(true)
	a.streams.end()
	err := errors.Join(<-a.done, <-a.done)
	a.streams.close()
	return err
}
