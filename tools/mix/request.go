package mix

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// requestSize is the length of a request and of an answer in bytes.
const requestSize = 64

// Requests is connections with one request each on its way, of which the next
// leaves as soon as the answer is there.
type requests struct {
	window
	*streams
	client, server chan error
	counting       atomic.Bool
	sent           []time.Time
	// times are written by the client's thread alone, and read after its end.
	times []time.Duration
}

var _ load = (*requests)(nil)

func startRequests(from, to *lab.Node, v6 bool, n int) (*requests, error) {
	s, err := connect(from, to, v6, n)
	if err != nil {
		return nil, err
	}
	r := &requests{
		streams: s, client: make(chan error, 1), server: make(chan error, 1),
		sent: make([]time.Time, n), times: make([]time.Duration, 0, 1<<18),
	}
	go func() {
		b := make([]byte, requestSize)
		r.server <- serve(s.to, func(i int) bool { return exchange(s.to[i], b) })
	}()
	go func() { r.client <- r.ask() }()
	return r, nil
}

// ask sends the first requests, and each next one when it has its answer.
func (r *requests) ask() error {
	b := make([]byte, requestSize)
	for i, fd := range r.from {
		r.sent[i] = time.Now()
		if _, err := unix.Write(fd, b); err != nil {
			return fmt.Errorf("sending a request: %w", err)
		}
	}
	return serve(r.from, func(i int) bool {
		if !receive(r.from[i], b) {
			return false
		}
		now := time.Now()
		if r.counting.Load() {
			r.times = append(r.times, now.Sub(r.sent[i]))
		}
		r.sent[i] = now
		_, err := unix.Write(r.from[i], b)
		return err == nil
	})
}

// exchange receives one message and sends it back.
func exchange(fd int, b []byte) bool {
	if !receive(fd, b) {
		return false
	}
	_, err := unix.Write(fd, b)
	return err == nil
}

// receive takes one message, which TCP may deliver in parts; false is the end.
func receive(fd int, b []byte) bool {
	for got := 0; got < len(b); {
		n, err := unix.Read(fd, b[got:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return false
		}
		got += n
	}
	return true
}

func (r *requests) begin() {
	r.window.begin()
	r.counting.Store(true)
}

func (r *requests) end() {
	r.counting.Store(false)
	r.window.end()
}

// report ends the client, whose times it needs.
func (r *requests) report(f Figures) {
	r.streams.end()
	r.client <- <-r.client // close takes it
	f[Rate] = r.perSecond(uint64(len(r.times)))
	if len(r.times) == 0 {
		return
	}
	slices.Sort(r.times)
	quantile := func(q float64) float64 {
		return float64(r.times[int(q*float64(len(r.times)-1))]) / float64(time.Microsecond)
	}
	f[P50], f[P99] = quantile(0.5), quantile(0.99)
}

func (r *requests) close() error {
	r.streams.end()
	err := errors.Join(<-r.client, <-r.server)
	r.streams.close()
	return err
}
