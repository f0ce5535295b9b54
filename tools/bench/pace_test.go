package bench

import (
	"errors"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/tools/livegen"
)

// A fakeSink lets pass what the losses leave of each burst, a part of it at each
// look, as a reader on another CPU would.
type fakeSink struct {
	arrived, queued uint64
	losses          []uint64 // by burst
	bursts          int
}

func (s *fakeSink) send(n int) (livegen.Burst, error) {
	var lost uint64
	if s.bursts < len(s.losses) {
		lost = s.losses[s.bursts]
	}
	s.bursts++
	s.queued += uint64(n) - lost
	return livegen.Burst{Frames: uint64(n), CPU: time.Duration(n) * 100}, nil
}

func (s *fakeSink) Frames() uint64 {
	some := s.queued - s.queued/2
	s.queued -= some
	s.arrived += some
	return s.arrived
}

func TestPacing(t *testing.T) {
	tests := []struct {
		name       string
		pacing     Pacing
		losses     []uint64
		want       Sample
		wantBursts int
	}{
		{"defaults", Pacing{}, nil, Sample{24 * 4096, 0, 24 * 409600}, 25},
		{"no warm-up", Pacing{Burst: 100, Bursts: 3, WarmUp: -1}, nil, Sample{300, 0, 30000}, 3},
		{"losses", Pacing{Burst: 100, Bursts: 3, WarmUp: -1, Bound: time.Millisecond}, []uint64{1, 0, 2}, Sample{300, 3, 30000}, 3},
		{"losses while warming up don't count", Pacing{Burst: 100, Bursts: 3, Bound: time.Millisecond}, []uint64{50}, Sample{300, 0, 30000}, 4},
		{"all lost", Pacing{Burst: 10, Bursts: 2, WarmUp: -1, Bound: time.Millisecond}, []uint64{10, 10}, Sample{20, 20, 2000}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sink := &fakeSink{losses: tt.losses}
			got, err := tt.pacing.Sample(sink.send, sink)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want || sink.bursts != tt.wantBursts {
				t.Errorf("got %+v after %d bursts, want %+v after %d", got, sink.bursts, tt.want, tt.wantBursts)
			}
		})
	}
}

func TestPacingWithoutSink(t *testing.T) {
	got, err := Pacing{Burst: 100, Bursts: 2}.Sample((&fakeSink{}).send, nil)
	if want := (Sample{Frames: 200, CPU: 20000}); err != nil || got != want {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
}

func TestPacingErrors(t *testing.T) {
	p := Pacing{Burst: 100, Bursts: 2}
	if _, err := p.Sample((&fakeSink{}).send, &fakeSink{queued: 3000}); !errors.Is(err, ErrDisturbed) {
		t.Errorf("more arrived than were sent: got %v, want %v", err, ErrDisturbed)
	}
	interrupted := func(n int) (livegen.Burst, error) {
		return livegen.Burst{Frames: uint64(n), Interrupted: 1}, nil
	}
	if _, err := p.Sample(interrupted, nil); !errors.Is(err, ErrDisturbed) {
		t.Errorf("an interrupted burst: got %v, want %v", err, ErrDisturbed)
	}
	broken := errors.New("broken")
	if _, err := p.Sample(func(int) (livegen.Burst, error) { return livegen.Burst{}, broken }, nil); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
