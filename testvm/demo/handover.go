package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	streamRate = 10000 // datagrams per second
	// streamWindow is the most datagrams that are on the way at once; so far may
	// what a counter of the datapath says be from what has arrived.
	streamWindow = 256

	// A few tenths of a second of the stream.
	streamPart = 3000

	// partWithin bounds the wait for a part.
	partWithin = 10 * time.Second

	// jiffy is the most that the kernel rounds the deadline up by.
	jiffy = 10 * time.Millisecond
)

// A Handover is the end of a daemon while numbered UDP datagrams go from the wire
// into a guest, 10000 per second.
type Handover struct {
	Check
	What       string `json:"what"` // happened to the daemon
	Sent       uint64 `json:"sent_datagrams"`
	Lost       uint64 `json:"lost_datagrams"`
	Duplicated uint64 `json:"duplicated_datagrams"`
	Damaged    uint64 `json:"damaged_datagrams"`
	Reordered  uint64 `json:"reordered_datagrams"` // which is no failure, where the way changes
	// Away is how many datagrams arrived while no daemon ran, and the frames from
	// the wire were to meet the verdict Want; AwayFrames is how many did.
	Away       uint64 `json:"away_datagrams"`
	AwayFrames uint64 `json:"away_frames"`
	Want       string `json:"away_verdict"`
	Adopted    bool   `json:"adopted"` // by the next daemon, if there was to be one
}

// takeOver kills the daemon and starts another one before the deadline.
func (s *scenario) takeOver(ctx context.Context) error {
	s.progress.step("killing tapswitchd (SIGKILL) under %d datagrams per second, and starting another", streamRate)
	h := Handover{What: "killed, started again", Want: vswitch.Redirected.String()}
	return s.underStream(ctx, &h, func(stream *lab.Stream) error {
		before, err := s.readCounters(ctx)
		if err != nil {
			return err
		}
		if err := s.kill(); err != nil {
			return err
		}
		if h.Away, err = receive(ctx, stream, streamPart); err != nil {
			return err
		}
		// With a short lease, for what comes next.
		if err := s.start(ctx, shortLease); err != nil {
			return err
		}
		return s.adopted(ctx, &h, before, vswitch.Redirected)
	})
}

// outlive kills the daemon and leaves it dead past the deadline.
func (s *scenario) outlive(ctx context.Context) error {
	s.progress.step("killing it again, and waiting until its lease of %v is over", shortLease)
	h := Handover{What: "killed, past its deadline", Want: vswitch.PassExpired.String()}
	return s.underStream(ctx, &h, func(stream *lab.Stream) error {
		before, err := s.readCounters(ctx)
		if err != nil {
			return err
		}
		if err := s.kill(); err != nil {
			return err
		}
		over := time.NewTimer(shortLease + jiffy)
		defer over.Stop()
		select {
		case <-over.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if h.Away, err = receive(ctx, stream, streamPart); err != nil {
			return err
		}
		if err := s.start(ctx, longLease); err != nil {
			return err
		}
		if err := s.adopted(ctx, &h, before, vswitch.PassExpired); err != nil {
			return err
		}
		return s.fastAgain(ctx, stream)
	})
}

// underStream does something to the daemon while a stream goes into a guest, and
// adds what was seen to the report.
func (s *scenario) underStream(ctx context.Context, h *Handover, do func(*lab.Stream) error) error {
	h.Name = "daemon " + h.What
	stream, err := lab.StartStream(s.Wire, s.Guests[0].Node, lab.StreamOptions{Rate: streamRate, Window: streamWindow})
	if err == nil {
		_, err = receive(ctx, stream, streamPart)
	}
	if err == nil {
		err = do(stream)
	}
	if err == nil {
		_, err = receive(ctx, stream, streamPart)
	}
	var sent lab.StreamReport
	if stream != nil {
		sent = stream.Stop()
	}
	h.judge(sent, err)
	s.report.Handovers = append(s.report.Handovers, *h)
	// These two are seen in the row; the rest is worth a look still.
	if errors.Is(err, errDriedUp) || errors.Is(err, errNotFast) {
		return nil
	}
	return err
}

// judge fills in the check; err is what went wrong on the way.
func (h *Handover) judge(r lab.StreamReport, err error) {
	h.Sent, h.Lost, h.Duplicated, h.Damaged, h.Reordered = r.Sent, r.Lost, r.Duplicated, r.Damaged, r.Reordered
	switch {
	case err != nil:
		h.Seen = strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ") // it may have the daemon's log
	case r.Lost > 0 || r.Duplicated > 0 || r.Damaged > 0 || r.Refused > 0:
		h.Seen = fmt.Sprintf("of %d datagrams %d were lost, %d came twice, %d came damaged, %d could not be sent",
			r.Sent, r.Lost, r.Duplicated, r.Damaged, r.Refused)
	case h.Want != "" && !h.Adopted:
		h.Seen = "the next daemon did not adopt the datapath"
	case h.Want != "" && h.AwayFrames+streamWindow < h.Away:
		h.Seen = fmt.Sprintf("%d datagrams arrived without a daemon, but only %d frames met the verdict %s", h.Away, h.AwayFrames, h.Want)
	default:
		h.OK = true
		h.Seen = fmt.Sprintf("all %d datagrams arrived once", r.Sent)
	}
}

var errDriedUp = errors.New("the datagrams no longer arrive")

// receive waits for n more datagrams, and gives how many came.
func receive(ctx context.Context, stream *lab.Stream, n uint64) (uint64, error) {
	before := stream.Received()
	part, cancel := context.WithTimeout(ctx, partWithin)
	defer cancel()
	err := stream.WaitReceived(part, n)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", errDriedUp, err)
	}
	return stream.Received() - before, err
}

// adopted looks whether a new daemon has taken over, and what its predecessor's
// datapath did since before.
func (s *scenario) adopted(ctx context.Context, h *Handover, before counters, v vswitch.Verdict) error {
	status, err := s.api.Status(ctx)
	if err != nil {
		return err
	}
	h.Adopted = status.Datapath.Adopted
	after, err := s.readCounters(ctx)
	if err != nil {
		return err
	}
	h.AwayFrames = after.since(before)[lab.NIC][v]
	return nil
}

var errNotFast = errors.New("the new daemon runs, but its frames still go by the bridge")

// fastAgain checks that a new daemon made the stream fast again.
func (s *scenario) fastAgain(ctx context.Context, stream *lab.Stream) error {
	before, err := s.readCounters(ctx)
	if err != nil {
		return err
	}
	arrived, err := receive(ctx, stream, streamPart)
	if err != nil {
		return err
	}
	after, err := s.readCounters(ctx)
	if err != nil {
		return err
	}
	if n := after.since(before)[lab.NIC][vswitch.Redirected]; n+streamWindow < arrived {
		return fmt.Errorf("%w: %d of %d", errNotFast, arrived-n, arrived)
	}
	return nil
}
