package oracle

import (
	"context"
	"errors"
	"slices"
	"time"
)

// A shrinker looks for a small case that differs, by trying smaller ones.
type shrinker struct {
	best     *Case
	differs  func(*Case) bool
	deadline time.Time
	runs     int
}

// reproductions is how often a case is tried before it is taken for one that differs
// by chance.
const reproductions = 3

// shrinkPatience bounds how long a case takes that differs in what is waited for.
const shrinkPatience = 4 * time.Second

// Shrink gives the smallest case that it finds within a time to differ still, in the
// datapath being late if the case did; none if this one doesn't differ again. runs says
// how often it tried.
func (c *Case) Shrink(ctx context.Context, late bool, within time.Duration) (small *Case, runs int) {
	patient := *c
	patient.Patience = shrinkPatience
	s := &shrinker{best: &patient, deadline: time.Now().Add(within)}
	s.differs = func(c *Case) bool {
		d := (*Difference)(nil)
		// On a busy machine, any case may be late.
		if !errors.As(c.Replay(ctx), &d) || d.late != late {
			return false
		}
		c.Why = d.Reason()
		return true
	}
	for !s.try(patient) {
		if s.runs == reproductions || s.over() {
			return nil, s.runs
		}
	}
	s.cutBeginning()
	s.dropSteps()
	s.simplifyOptions()
	s.simplifyFrames()
	s.dropSteps()
	return s.best, s.runs
}

func (s *shrinker) over() bool { return !time.Now().Before(s.deadline) }

// try makes a case the best one if it differs, while there is time.
func (s *shrinker) try(c Case) bool {
	if s.over() {
		return false
	}
	s.runs++
	if !s.differs(&c) {
		return false
	}
	s.best = &c
	return true
}

// with gives the best case with other steps.
func (s *shrinker) with(steps []step) Case {
	c := *s.best
	c.Steps = steps
	return c
}

// cutBeginning finds a short end of the case that is enough.
func (s *shrinker) cutBeginning() {
	for n := 100; n < len(s.best.Steps); n *= 3 {
		if s.try(s.with(s.best.Steps[len(s.best.Steps)-n:])) {
			return
		}
	}
}

// dropSteps leaves out steps: large parts first, then single ones, until none can be
// left out.
func (s *shrinker) dropSteps() {
	for size := len(s.best.Steps) / 2; size > 0 && !s.over(); {
		dropped := false
		for end := len(s.best.Steps); end > 0 && !s.over(); end -= size {
			steps := s.best.Steps
			if s.try(s.with(slices.Concat(steps[:max(0, end-size)], steps[end:]))) {
				dropped = true
			}
		}
		if size > 1 {
			size /= 2
		} else if !dropped {
			return
		}
	}
}

func (s *shrinker) simplifyOptions() {
	for _, simplify := range []func(*Options){
		func(o *Options) { o.Snooping = false },
		func(o *Options) { o.Jumbo = false },
		func(o *Options) { o.VLANs = false },
	} {
		c := *s.best
		if simplify(&c.Options); c.Options != s.best.Options {
			s.try(c)
		}
	}
}

// simplifyFrames tries to do with shorter frames, of zeros behind their first bytes,
// and without virtio-net headers.
func (s *shrinker) simplifyFrames() {
	const (
		least = 60 // bytes of a whole frame
		kept  = 22 // bytes: addresses, two tags and the type
	)
	for i := range s.best.Steps {
		if s.best.Steps[i].Frame == nil {
			continue
		}
		for _, simplify := range []func(*frame){
			func(f *frame) { f.data = f.data[:min(len(f.data), least)] },
			func(f *frame) { f.header = [vnetLen]byte{} },
			func(f *frame) { clear(f.data[min(len(f.data), kept):]) },
		} {
			f := *s.best.Steps[i].Frame
			f.data = slices.Clone(f.data)
			simplify(&f)
			if old := s.best.Steps[i].Frame; f.header == old.header && slices.Equal(f.data, old.data) {
				continue
			}
			steps := slices.Clone(s.best.Steps)
			steps[i].Frame = &f
			s.try(s.with(steps))
		}
	}
}
