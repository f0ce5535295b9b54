package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/bridge"
	"github.com/tapswitch/tapswitch/vswitch/policy"
)

// lookEvery is how often everything is read again, in case an event was lost in
// a way that nobody noticed.
const lookEvery = time.Minute

// lookShare bounds the time that goes into this: one part of so many. With a bridge
// whose table a guest has filled with a million addresses, a look takes a second.
const lookShare = 30

// catchUpShare is lookShare's counterpart while a look has left something out.
const catchUpShare = 3

// retryFullEvery is how often entries are tried again for which there was no
// room. Seldom, because a guest that floods addresses can keep the table full.
const retryFullEvery = 10 * time.Second

// A service keeps the datapath in step with the bridges. One goroutine, in Run,
// owns all of it; others reach it by do.
type service struct {
	log     *slog.Logger
	dp      *hostbpf.Datapath
	mirror  *bridge.Mirror
	rules   *policy.Reader
	rounds  *rounds // of police
	lease   time.Duration
	domains domains
	promote map[vswitch.MAC]bool // taps to promote, by their own address
	xdp     vswitch.XDPMode
	started time.Time
	// alive is called while the service is in order: ready first, then at every
	// renewal.
	ready, alive func()

	plan    vswitch.Plan
	holds   map[int][]vswitch.HoldReason // that lie in the devices and in rules beside the bridge
	pauses  pauses
	drops   deviceDrops
	full    int  // entries for which there was no room
	behind  bool // the datapath may not agree with the bridges: don't renew, look again
	renewed time.Time
	looked  time.Time
	// lookTook is how long the last reading of everything took.
	lookTook time.Duration
	retried  time.Time         // entries for which there had been no room
	aged     map[int]time.Time // last refresh round, by bridge
	calls    chan func()
	batches  chan bridge.Batch // of events, as the reader has them
}

func newService(log *slog.Logger, dp *hostbpf.Datapath, mirror *bridge.Mirror, lease time.Duration) *service {
	return &service{
		log: log, dp: dp, mirror: mirror, rules: policy.NewReader(policy.Options{}), rounds: newRounds(), lease: lease, started: time.Now(),
		ready: func() {}, alive: func() {},
		pauses: pauses{}, drops: deviceDrops{}, aged: map[int]time.Time{}, calls: make(chan func()), batches: make(chan bridge.Batch, 1),
	}
}

// run keeps the datapath in step until ctx is done. The mirror is closed then.
func (s *service) run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	context.AfterFunc(ctx, func() { s.mirror.Close() })
	tasks.Go(func() error {
		for {
			b, err := s.mirror.Receive()
			if err != nil {
				if errors.Is(err, os.ErrClosed) {
					return nil
				}
				return fmt.Errorf("hearing of bridge changes: %w", err)
			}
			if b.Empty() {
				continue
			}
			// While the loop is busy the socket must not fill up: what it has not taken
			// yet and this become one.
			select {
			case earlier := <-s.batches:
				if earlier.Append(b) {
					b = earlier
					break
				}
				// There is room: nobody else puts anything there.
				s.batches <- earlier
			default:
			}
			select {
			case s.batches <- b:
			case <-ctx.Done():
				return nil
			}
		}
	})
	tasks.Go(func() error { return s.loop(ctx) })
	return tasks.Wait()
}

func (s *service) loop(ctx context.Context) error {
	s.mirror.Between = func() {
		// Reading everything takes long when a guest has filled a bridge's table.
		if ago := time.Since(s.renewed); ago < s.lease/4 || ago >= s.lease {
			return
		}
		if err := s.renew(); err != nil {
			s.log.Warn("renewing the datapath's deadline", "error", err)
		}
	}
	s.police()
	s.reconcile()
	if err := s.renew(); err != nil {
		return err
	}
	s.looked = time.Now()
	s.ready()
	tick := time.NewTicker(s.lease / 4)
	defer tick.Stop()
	defer s.rounds.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case b := <-s.batches:
			change, err := s.mirror.Apply(b)
			s.follow(change, err)
		case <-tick.C:
			s.tick()
			if err := s.renew(); err != nil {
				return err
			}
		case <-s.domains.changed():
			if s.domains.match() {
				s.reconcile()
			}
		case <-s.rounds.timer.C:
			if s.police() || s.refused() || s.endPauses() {
				s.reconcile()
			}
			s.rounds.next()
		case f := <-s.calls:
			f()
		}
	}
}

// do runs f in the service's goroutine.
func (s *service) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case s.calls <- func() { defer close(done); f() }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow applies what the mirror says has changed.
func (s *service) follow(c bridge.Change, err error) {
	if err != nil {
		s.log.Warn("reading everything again", "because", err)
		s.behind = true
	}
	if c.Resync {
		s.looked = time.Now()
	}
	for _, ifindex := range c.Gone {
		// What was attached to it is dead; another device may have its number.
		s.domains.forget(ifindex)
		s.rounds.forget(ifindex)
		if err := s.dp.DeletePort(ifindex); err != nil {
			s.log.Warn("removing a port that has gone", "ifindex", ifindex, "error", err)
			s.behind = true
		}
	}
	if c.Topology || c.Resync {
		if s.rounds.due(s.mirror) {
			s.police() // a new port must not be open before it has been looked at
		}
		s.reconcile()
		return
	}
	for _, key := range c.FDB {
		e, ok := s.mirror.FDB[key]
		switch err := vswitch.ReconcileEntry(s.dp, s.plan, key, e, ok); {
		case errors.Is(err, vswitch.ErrFull):
			s.full++ // counted anew at the next look
		case err != nil:
			s.log.Warn("applying a forwarding entry", "mac", key.MAC, "error", err)
			s.behind = true
		}
	}
}

// reconcile makes the datapath agree with all that is known.
func (s *service) reconcile() {
	if s.domains.follow(s.mirror.Ports) {
		s.rounds.soon()
	}
	s.domains.match()
	o := s.mirror.Observation()
	o.Holds = s.mirror.Holds()
	for _, holds := range []map[int][]vswitch.HoldReason{s.holds, s.pauses.holds(time.Now())} {
		for ifindex, reasons := range holds {
			o.Holds[ifindex] = append(o.Holds[ifindex], reasons...)
		}
	}
	for ifindex, p := range o.Ports {
		p.Promoted = s.promote[p.MAC]
		o.Ports[ifindex] = p
	}
	o.XDP = s.xdp
	s.domains.decide(o)
	o.Attached = map[int]bool{}
	for ifindex := range s.dp.Ports() {
		o.Attached[ifindex] = len(s.dp.Hooks(ifindex)) > 0
	}
	plan, full, err := vswitch.Reconcile(s.dp, o, s.mirror.FDB)
	if s.behind = err != nil; s.behind {
		s.log.Error("bringing the datapath in step with the bridges", "error", err)
	}
	s.logChanges(plan)
	s.plan, s.full = plan, full
	s.followDrops()
}

func (s *service) logChanges(plan vswitch.Plan) {
	for ifindex, p := range plan.Ports {
		old, there := s.plan.Ports[ifindex]
		if there && old.Bridge == p.Bridge && old.State() == p.State() && slices.Equal(old.Held, p.Held) {
			continue
		}
		attrs := []any{"port", p.Name, "ifindex", ifindex, "bridge", plan.Bridges[p.Bridge].Name, "role", p.Role, "state", p.State()}
		for _, h := range p.Held {
			attrs = append(attrs, "because", h.Text)
		}
		s.log.Info("port", attrs...)
	}
	for ifindex, p := range s.plan.Ports {
		if _, still := plan.Ports[ifindex]; !still {
			s.log.Info("port gone", "port", p.Name, "ifindex", ifindex)
		}
	}
}

// tick does what no event asks for.
func (s *service) tick() {
	now := time.Now()
	since := now.Sub(s.looked)
	// After a stop past the deadline, the events of the meantime are still to be
	// heard, and the datapath must not act again before.
	lapsed := now.Sub(s.renewed) >= s.lease
	switch {
	case s.behind || lapsed:
		s.behind = true // until it has been read
		fallthrough
	case since >= max(lookEvery, lookShare*s.lookTook), s.mirror.Partial() && since >= catchUpShare*s.lookTook:
		change, err := s.mirror.Resync()
		s.lookTook = time.Since(now)
		s.follow(change, err)
	case s.full > 0 && now.Sub(s.retried) >= retryFullEvery:
		s.retried = now
		s.reconcile()
	}
	s.refresh(now)
}

// police looks for what makes no event, and says whether it found anything new.
func (s *service) police() bool {
	found, err := s.dp.Holds(s.mirror.Ports)
	if err != nil {
		s.log.Warn("looking for other programs on the ports", "error", err)
		return false
	}
	for ifindex, remarks := range s.mirror.Flooding() {
		found[ifindex] = append(found[ifindex], remarks...)
	}
	for ifindex, reasons := range s.rules.Holds(s.mirror.Bridges, s.mirror.Ports) {
		found[ifindex] = append(found[ifindex], reasons...)
	}
	s.domains.rulesChanged(s.rules.FilterRules())
	changed := !reflect.DeepEqual(found, s.holds)
	s.holds = found
	s.rounds.done(s.mirror)
	return changed
}

// refused says whether a port may be attachable by now that was not: nothing
// tells when somebody else's program goes.
func (s *service) refused() bool {
	for _, p := range s.plan.Ports {
		for _, h := range p.Held {
			if h.Code == vswitch.HoldForeign || h.Code == vswitch.HoldFailed {
				return true
			}
		}
	}
	return false
}

// catchUp applies the events that have come, without waiting for more.
func (s *service) catchUp() {
	for {
		select {
		case b := <-s.batches:
			change, err := s.mirror.Apply(b)
			s.follow(change, err)
		default:
			return
		}
	}
}

// refresh keeps addresses alive in the bridges that only the fast path sees. It
// must not name a port that an address has just left: the bridge would take the
// address back for a moment.
func (s *service) refresh(now time.Time) {
	maps.DeleteFunc(s.aged, func(ifindex int, _ time.Time) bool {
		_, there := s.plan.Bridges[ifindex]
		return !there
	})
	for ifindex, br := range s.plan.Bridges {
		every := vswitch.RefreshEvery(br.Ageing)
		if every == 0 || now.Sub(s.aged[ifindex]) < every {
			continue
		}
		since := min(now.Sub(s.aged[ifindex]), br.Ageing) + hostbpf.SeenEvery
		s.aged[ifindex] = now
		s.catchUp()
		var active []vswitch.FDBEntry
		for key := range s.dp.Active(since) {
			if e, ok := s.mirror.FDB[key]; ok && key.Bridge == ifindex && e.Origin == vswitch.OriginLearned {
				active = append(active, e)
			}
		}
		if err := s.mirror.Refresh(active); err != nil {
			s.log.Warn("refreshing addresses in use", "bridge", br.Name, "error", err)
		}
	}
}

// renew lets the datapath go on, unless it may disagree with the bridges.
func (s *service) renew() error {
	if s.behind {
		return nil
	}
	if err := s.dp.Renew(s.lease); err != nil {
		return err
	}
	s.renewed = time.Now()
	s.alive()
	return nil
}
