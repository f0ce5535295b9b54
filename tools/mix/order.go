package mix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/tools/bench"
)

// OrderOptions say how the order of segments is checked. Daemon must be set.
type OrderOptions struct {
	Daemon string // path of the tapswitchd to run
	// Bytes is how much all flows send by each way together; zero means 300 MB.
	Bytes int64
	// Progress, if not nil, is told what is being done, in lines.
	Progress io.Writer
}

// The flows of each family. What they have on its way at once must fit the 256
// frames of the ring between the wire and the NIC, or segments would be lost, and
// those sent again come out of order by any way.
const (
	steadyFlows = 2
	burstyFlows = 4
	// sendBuffer is a flow's SO_SNDBUF in bytes, which the kernel doubles and takes
	// its own overhead from: some 15 segments.
	sendBuffer = 20 << 10
	maxBurst   = 48 << 10
	// maxPause is longer than a flow counts as bulk without a long segment, so that
	// bursty flows change their way.
	maxPause = 750 * time.Millisecond
)

// A OrderReport says in what order segments came into a guest.
type OrderReport struct {
	Bytes int64        `json:"bytes"` // by each way
	Ways  []OrderCount `json:"ways"`
	OK    bool         `json:"ok"` // the fast path reorders no more than the bridge
}

// A OrderCount is what the stations' TCP has counted by one way.
type OrderCount struct {
	Way     string        `json:"way"`
	Elapsed time.Duration `json:"elapsed_ns"`
	// OutOfOrder is segments that the guest got before an earlier one; it answers
	// each by a duplicate acknowledgement (RFC 5681, 4.2).
	OutOfOrder uint64 `json:"out_of_order"`
	// Again also counts what a sender sent twice to probe for a loss, when its last
	// segment's acknowledgement was late (RFC 8985, 7), so it decides nothing.
	Again  uint64 `json:"received_again"`   // segments that the guest had already
	Seen   uint64 `json:"reordering_seen"`  // times that a sender inferred that segments were reordered
	Fast   uint64 `json:"fast_retransmits"` // after duplicate acknowledgements
	Resent uint64 `json:"retransmits"`      // segments, for any reason
}

// CheckOrder sends mixed flows into a guest, by the bridge and by the fast path:
// steady streams, and flows that send bursts of any length with pauses, so that they
// become bulk and small again.
func CheckOrder(ctx context.Context, o OrderOptions) (_ *OrderReport, err error) {
	if o.Bytes == 0 {
		o.Bytes = 300e6
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	r := &OrderReport{Bytes: o.Bytes}
	for _, way := range []string{Bridge, Tapswitch} {
		fmt.Fprintf(o.Progress, "sending %d bytes into a guest by %s\n", o.Bytes, way)
		c, err := countReordered(ctx, way, o)
		if err != nil {
			return nil, fmt.Errorf("checking the order of segments by %s: %w", way, err)
		}
		r.Ways = append(r.Ways, c)
	}
	bridge, fast := r.Ways[0], r.Ways[1]
	r.OK = fast.OutOfOrder <= bridge.OutOfOrder && fast.Seen <= bridge.Seen
	return r, nil
}

func countReordered(ctx context.Context, way string, o OrderOptions) (c OrderCount, err error) {
	h, err := newHost(ctx, way, Options{Daemon: o.Daemon})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	before, err := h.readTCP()
	if err != nil {
		return c, err
	}
	began := time.Now()
	if err := h.sendMixed(ctx, o.Bytes); err != nil {
		return c, err
	}
	elapsed := time.Since(began)
	after, err := h.readTCP()
	if err != nil {
		return c, err
	}
	return OrderCount{
		Way: way, Elapsed: elapsed,
		OutOfOrder: after.since(before, ofoQueue),
		Again:      after.since(before, dsackOldSent, dsackOfoSent),
		Seen:       after.since(before, sackReorder, renoReorder, tsReorder),
		Fast:       after.since(before, fastRetrans),
		Resent:     after.since(before, retransSegs),
	}, nil
}

// sendMixed sends bytes by all flows together, and waits until all have come.
func (h *host) sendMixed(ctx context.Context, bytes int64) (err error) {
	var (
		running        sync.WaitGroup
		left, received atomic.Int64
		flows          []*streams
	)
	left.Store(bytes)
	defer func() {
		for _, s := range flows {
			s.close()
		}
	}()
	for _, v6 := range []bool{false, true} {
		s, err := connect(h.Wire, h.Guests[0].Node, v6, steadyFlows+burstyFlows)
		if err != nil {
			return err
		}
		flows = append(flows, s)
		for _, fd := range s.from {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer); err != nil {
				return fmt.Errorf("limiting what a flow has on its way: %w", err)
			}
		}
	}
	stop := context.AfterFunc(ctx, func() {
		for _, s := range flows {
			s.end()
		}
	})
	defer stop()
	for _, s := range flows {
		for i := range s.from {
			running.Go(func() { sendFlow(s.from[i], &left, i >= steadyFlows) })
			running.Go(func() { received.Add(drain(s.to[i])) })
		}
	}
	running.Wait()
	if n := received.Load(); n != bytes {
		return errors.Join(fmt.Errorf("%d of %d bytes came", n, bytes), ctx.Err())
	}
	return nil
}

// sendFlow takes from what is left and sends it, in bursts with pauses if bursty.
func sendFlow(fd int, left *atomic.Int64, bursty bool) {
	chunk := make([]byte, maxBurst)
	for {
		n := int64(len(chunk))
		if bursty {
			// As many below a segment as above.
			n = int64(1) << rand.IntN(16)
			n = min(n+rand.Int64N(n), maxBurst)
			// Some pauses end within the time that a flow stays bulk, some after.
			time.Sleep(rand.N(maxPause) >> rand.IntN(12))
		}
		rest := left.Add(-n)
		if n = min(n, rest+n); n <= 0 {
			break
		}
		for b := chunk[:n]; len(b) > 0; {
			sent, err := unix.Write(fd, b)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
			b = b[max(sent, 0):]
		}
	}
	_ = unix.Shutdown(fd, unix.SHUT_WR) // the peer sees how much came
}

// drain receives until the end, and gives how much came.
func drain(fd int) (total int64) {
	b := make([]byte, bulkChunk)
	for {
		n, err := unix.Read(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return total
		}
		total += int64(n)
	}
}

// WriteText writes the report for people.
func (r *OrderReport) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%d bytes in %d flows into a guest, by each way; segments as TCP has counted them.\n\n", r.Bytes, 2*(steadyFlows+burstyFlows))
	t := bench.NewTable("way", "seconds", "out of order", "received again", "reordering seen", "fast retransmits", "retransmits")
	for _, c := range r.Ways {
		t.Row(c.Way, fmt.Sprintf("%.1f", c.Elapsed.Seconds()), fmt.Sprint(c.OutOfOrder), fmt.Sprint(c.Again),
			fmt.Sprint(c.Seen), fmt.Sprint(c.Fast), fmt.Sprint(c.Resent))
	}
	return t.Write(w)
}
