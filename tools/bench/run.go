package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"
)

// A Sample is what one measurement of a way gave.
type Sample struct {
	Frames uint64        // sent
	Lost   uint64        // of those sent
	CPU    time.Duration // that they cost the sender
}

// PerFrame gives the cost of a frame in nanoseconds.
func (s Sample) PerFrame() float64 { return float64(s.CPU) / float64(s.Frames) }

// ErrDisturbed is what a measurement returns if something from outside spoiled
// it, so that it should be made again.
var ErrDisturbed = errors.New("the measurement was disturbed")

// attempts is how often a disturbed measurement is made before Run gives up.
const attempts = 5

// A Way is one of the things that are compared. Measure leaves nothing behind
// that another way could feel.
type Way struct {
	Name    string
	Measure func() (Sample, error)
}

// Options say how ways are compared.
type Options struct {
	// Rounds is how often each way is measured; zero means 11.
	Rounds int
	// WarmUp is how many rounds come before these and do not count; zero means
	// 1, a negative number none.
	WarmUp int
	// Floor names the way whose cost every other contains: it is taken off
	// theirs within each round. Empty means that nothing is.
	Floor string
	// Base names the way that others are compared with. Empty means the first
	// that is not the floor.
	Base string
	// Progress, if not nil, is told of each round in a line.
	Progress io.Writer
}

const defaultRounds = 11

// Run measures the ways in turn: in the order given in one round, and backwards
// in the next, so that a machine that becomes slower or faster in between does
// the same to all. It ends early, with an error, when the context does.
func Run(ctx context.Context, ways []Way, o Options) (*Result, error) {
	rounds, warmUp := o.Rounds, max(o.WarmUp, 0)
	if rounds == 0 {
		rounds = defaultRounds
	}
	if o.WarmUp == 0 {
		warmUp = 1
	}
	c, err := newComparison(ways, o)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for round := range warmUp + rounds {
		samples, err := measureRound(ctx, ways, round)
		if err != nil {
			return nil, err
		}
		if round >= warmUp {
			c.add(samples)
		}
		if o.Progress != nil {
			report(o.Progress, round, warmUp, rounds, time.Since(began))
		}
	}
	return c.result(rounds), nil
}

// Turns gives the indices of n ways in the order of their turns in a round, which
// counts from 0.
func Turns(n, round int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if round%2 == 1 {
				i = n - 1 - i
			}
			if !yield(i) {
				return
			}
		}
	}
}

// measureRound gives a sample of each way, in the order of ways.
func measureRound(ctx context.Context, ways []Way, round int) ([]Sample, error) {
	samples := make([]Sample, len(ways))
	for i := range Turns(len(ways), round) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("measuring %s: %w", ways[i].Name, err)
		}
		var err error
		if samples[i], err = measure(ways[i]); err != nil {
			return nil, fmt.Errorf("measuring %s: %w", ways[i].Name, err)
		}
	}
	return samples, nil
}

func measure(way Way) (s Sample, err error) {
	for range attempts {
		s, err = way.Measure()
		if !errors.Is(err, ErrDisturbed) {
			break
		}
	}
	if err == nil && s.Frames == 0 {
		err = errors.New("no frame was sent")
	}
	return s, err
}

func report(w io.Writer, round, warmUp, rounds int, took time.Duration) {
	if round < warmUp {
		fmt.Fprintf(w, "warm-up %d of %d\n", round+1, warmUp)
		return
	}
	left := took / time.Duration(round+1) * time.Duration(warmUp+rounds-round-1)
	fmt.Fprintf(w, "round %d of %d, about %v left\n", round-warmUp+1, rounds, left.Round(time.Second))
}

// A comparison collects samples; all slices are in the order of ways.
type comparison struct {
	ways        []Way
	floor, base int // indices in ways; floor is -1 for none
	samples     [][]Sample
}

func newComparison(ways []Way, o Options) (*comparison, error) {
	c := &comparison{ways: ways, floor: -1, samples: make([][]Sample, len(ways))}
	find := func(name string) int {
		return slices.IndexFunc(ways, func(w Way) bool { return w.Name == name })
	}
	if o.Floor != "" {
		if c.floor = find(o.Floor); c.floor < 0 {
			return nil, fmt.Errorf("comparing ways: there is none named %q for the floor", o.Floor)
		}
	}
	if o.Base != "" {
		c.base = find(o.Base)
	} else {
		c.base = slices.IndexFunc(ways, func(w Way) bool { return o.Floor == "" || w.Name != o.Floor })
	}
	if c.base < 0 || c.base == c.floor {
		return nil, fmt.Errorf("comparing ways: there is none named %q to compare with that is not the floor", o.Base)
	}
	return c, nil
}

func (c *comparison) add(samples []Sample) {
	for i, s := range samples {
		c.samples[i] = append(c.samples[i], s)
	}
}

func (c *comparison) result(rounds int) *Result {
	r := &Result{Rounds: rounds, Base: c.ways[c.base].Name}
	if c.floor >= 0 {
		r.Floor = c.ways[c.floor].Name
	}
	for i, way := range c.ways {
		w := WayResult{Name: way.Name}
		var gross []float64
		for round, s := range c.samples[i] {
			w.Frames += s.Frames
			w.Lost += s.Lost
			gross = append(gross, s.PerFrame())
			net := s.PerFrame()
			if c.floor >= 0 {
				net -= c.samples[c.floor][round].PerFrame()
			}
			w.nets = append(w.nets, net)
		}
		w.Gross, w.Net = NewSpread(gross), NewSpread(w.nets)
		w.Loss = float64(w.Lost) / float64(w.Frames)
		r.Ways = append(r.Ways, w)
	}
	for i := range r.Ways {
		r.Ways[i].Ratio = Ratio(r.Ways[i].nets, r.Ways[c.base].nets)
	}
	return r
}
