package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// echoes is how many echo requests go over IPv4, and over IPv6, between two
// stations.
const echoes = 20

// A Reach is how well one station reaches another.
type Reach struct {
	Check
	From string `json:"from"`
	To   string `json:"to"`
	// Sent is how many echo requests were sent over IPv4, and over IPv6.
	Sent int  `json:"sent_echoes"`
	IPv4 bool `json:"ipv4_all_answered"`
	IPv6 bool `json:"ipv6_all_answered"`
	// Fast and Bridge count the frames that came in by all ports meanwhile, by
	// the way they took.
	Fast   uint64 `json:"fast_frames"`
	Bridge uint64 `json:"bridge_frames"`
}

type pair struct{ from, to *lab.Node }

// pairs gives every two stations, with the station that begins first.
func (s *scenario) pairs() []pair {
	a, b := s.Guests[0].Node, s.Guests[1].Node
	return []pair{
		{s.Wire, a}, {a, s.Wire}, {s.Wire, b}, {b, s.Wire},
		{a, b}, {b, a},
		{s.Host, a}, {a, s.Host}, {s.Host, s.Wire}, {s.Wire, s.Host},
	}
}

// reach checks that every station reaches every other.
func (s *scenario) reach(ctx context.Context) error {
	s.progress.step("pinging between all stations, over IPv4 and IPv6")
	for _, p := range s.pairs() {
		// The first frames of two stations go by the bridge, which learns of them.
		// What goes wrong here does so below, where it is told.
		_, _ = pingBoth(ctx, p, 1)
	}
	if err := s.awaitLearned(ctx); err != nil {
		return err
	}
	for _, p := range s.pairs() {
		row, err := s.ping(ctx, p)
		if err != nil {
			return err
		}
		s.report.Reach = append(s.report.Reach, row)
	}
	return nil
}

// awaitLearned waits until the fast path has the addresses of all stations. If
// one doesn't come, the frames to it are seen to go by the bridge, so that is no
// error here.
func (s *scenario) awaitLearned(ctx context.Context) error {
	want := []vswitch.MAC{vswitch.MAC(lab.WireMAC)}
	for _, g := range s.Guests {
		want = append(want, vswitch.MAC(g.MAC))
	}
	return poll(ctx, func() (bool, error) {
		entries, err := s.api.FDB(ctx, control.FDBFilter{})
		if err != nil {
			return false, err
		}
		for _, mac := range want {
			if !slices.ContainsFunc(entries, func(e control.FDBEntry) bool { return e.MAC == mac && e.Fast }) {
				return false, nil
			}
		}
		return true, nil
	})
}

// ping sends echoes from one station to another, and looks which way they took.
func (s *scenario) ping(ctx context.Context, p pair) (Reach, error) {
	before, err := s.readCounters(ctx)
	if err != nil {
		return Reach{}, err
	}
	err4, err6 := pingBoth(ctx, p, echoes)
	after, err := s.readCounters(ctx)
	if err != nil {
		return Reach{}, err
	}
	row := Reach{From: p.from.Name(), To: p.to.Name(), Sent: echoes}
	row.Fast, row.Bridge = after.since(before).split()
	row.judge(err4, err6, p.from != s.Host && p.to != s.Host)
	return row, nil
}

// judge fills in the check. Between two stations behind ports, each echo and its
// answer should be fast.
func (r *Reach) judge(err4, err6 error, behindPorts bool) {
	r.Name = fmt.Sprintf("%s reaches %s", r.From, r.To)
	r.IPv4, r.IPv6 = err4 == nil, err6 == nil
	switch frames := uint64(4 * r.Sent); {
	case err4 != nil:
		r.Seen = err4.Error()
	case err6 != nil:
		r.Seen = err6.Error()
	case behindPorts && r.Fast < frames:
		r.Seen = fmt.Sprintf("all echoes were answered, but only %d of %d frames went by the fast path", r.Fast, frames)
	default:
		r.OK = true
		r.Seen = fmt.Sprintf("%d of %d echoes answered over IPv4, and over IPv6", r.Sent, r.Sent)
	}
}

func pingBoth(ctx context.Context, p pair, count int) (err4, err6 error) {
	ping := func(v6 bool) error {
		addr, err := p.to.Addr(v6)
		if err != nil {
			return err
		}
		return lab.Ping(ctx, p.from, addr, count)
	}
	return ping(false), ping(true)
}

const (
	pollEvery  = 10 * time.Millisecond
	pollWithin = 5 * time.Second
)

// poll asks again and again, of what makes no event, until done says so or it
// takes too long, which is no error.
func poll(ctx context.Context, done func() (bool, error)) error {
	end := time.After(pollWithin)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
