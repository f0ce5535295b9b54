package bench

import (
	"fmt"
	"time"

	"github.com/tapswitch/tapswitch/tools/livegen"
	"golang.org/x/sys/unix"
)

// Pacing says how frames are sent so that the sink loses none: in bursts that
// fit its queue, each only when the one before has been read.
type Pacing struct {
	// Burst is how many frames are sent at once; zero means livegen.MinBurst.
	// The sink's queue must hold more.
	Burst int
	// Bursts is how many make up one sample; zero means 24, about 100,000
	// frames.
	Bursts int
	// WarmUp is how many come before these and do not count; zero means 1, a
	// negative number none.
	WarmUp int
	// Bound is how long to wait for the rest of a burst while nothing arrives,
	// before it is counted as lost; zero means 1 s. The reader may be kept off
	// its CPU for a while, and only losses cost the wait.
	Bound time.Duration
}

// A Sink counts the frames that have arrived, of which it loses none.
type Sink interface{ Frames() uint64 }

// poll is how long to wait before the sink is asked again.
const poll = 20 * time.Microsecond

// Sample sends bursts and counts what arrives. A nil sink means that nothing
// should: the frames end in the program. The error is ErrDisturbed if the number
// of frames sent isn't known, or more arrived than were sent, because somebody
// else sends, the bridge floods, or the reader was away for longer than Bound.
//
// It is to be called on a thread that does nothing else.
func (p Pacing) Sample(send func(n int) (livegen.Burst, error), sink Sink) (Sample, error) {
	n, bursts, warmUp, bound := p.Burst, p.Bursts, max(p.WarmUp, 0), p.Bound
	if n == 0 {
		n = livegen.MinBurst
	}
	if bursts == 0 {
		bursts = 24
	}
	if p.WarmUp == 0 {
		warmUp = 1
	}
	if bound == 0 {
		bound = time.Second
	}
	var sample Sample
	for i := range warmUp + bursts {
		var before, arrived uint64
		if sink != nil {
			before = sink.Frames()
		}
		burst, err := send(n)
		if err != nil {
			return Sample{}, err
		}
		if burst.Interrupted > 0 {
			return Sample{}, fmt.Errorf("sending %d frames: a signal broke it off: %w", n, ErrDisturbed)
		}
		if arrived = burst.Frames; sink != nil {
			arrived = await(sink, before, burst.Frames, bound)
		}
		if arrived > burst.Frames {
			return Sample{}, fmt.Errorf("counting a burst of %d frames: %d arrived: %w", burst.Frames, arrived, ErrDisturbed)
		}
		if i >= warmUp {
			sample.Frames += burst.Frames
			sample.Lost += burst.Frames - arrived
			sample.CPU += burst.CPU
		}
	}
	return sample, nil
}

// await waits until n frames have arrived since before, or nothing has for bound,
// and gives how many have.
func await(sink Sink, before, n uint64, bound time.Duration) uint64 {
	arrived, last := sink.Frames()-before, time.Now()
	for arrived < n && time.Since(last) < bound {
		// Not time.Sleep: it would hand the thread's work to another one.
		ts := unix.NsecToTimespec(poll.Nanoseconds())
		_ = unix.Nanosleep(&ts, nil) // a signal ends it early, which does no harm
		if now := sink.Frames() - before; now != arrived {
			arrived, last = now, time.Now()
		}
	}
	return arrived
}
