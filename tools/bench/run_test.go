package bench

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A fakeWay costs what the list says, in turn, in ns per frame.
func fakeWay(name string, order *[]string, costs ...float64) Way {
	i := 0
	return Way{Name: name, Measure: func() (Sample, error) {
		*order = append(*order, name)
		cost := costs[i%len(costs)]
		i++
		return Sample{Frames: 1000, Lost: 1, CPU: time.Duration(1000 * cost)}, nil
	}}
}

func TestOrder(t *testing.T) {
	tests := []struct {
		name string
		o    Options
		want string
	}{
		{"warm-up by default", Options{Rounds: 3}, "abc cba abc cba"},
		{"no warm-up", Options{Rounds: 2, WarmUp: -1}, "abc cba"},
		{"two of warm-up", Options{Rounds: 1, WarmUp: 2}, "abc cba abc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var order []string
			ways := []Way{fakeWay("a", &order, 1), fakeWay("b", &order, 2), fakeWay("c", &order, 3)}
			if _, err := Run(t.Context(), ways, tt.o); err != nil {
				t.Fatal(err)
			}
			var rounds []string
			for round := range slices.Chunk(order, len(ways)) {
				rounds = append(rounds, strings.Join(round, ""))
			}
			if got := strings.Join(rounds, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Ratios are formed within a round: a machine that is half as fast in one round
// changes none of them.
func TestRatios(t *testing.T) {
	var order []string
	ways := []Way{
		fakeWay("floor", &order, 100, 200, 100),
		fakeWay("base", &order, 500, 1000, 500),
		fakeWay("slow", &order, 1300, 2600, 1300),
	}
	r, err := Run(t.Context(), ways, Options{Rounds: 3, WarmUp: -1, Floor: "floor"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Base != "base" {
		t.Errorf("the base is %q", r.Base)
	}
	slow, ok := r.Way("slow")
	if !ok {
		t.Fatal("no result for slow")
	}
	if want := (Spread{3, 3, 3, 3, 3}); slow.Ratio != want {
		t.Errorf("ratio %+v, want %+v", slow.Ratio, want)
	}
	if want := (Spread{Median: 1200, Min: 1200, Q1: 1200, Q3: 1800, Max: 2400}); slow.Net != want {
		t.Errorf("net %+v, want %+v", slow.Net, want)
	}
	if slow.Frames != 3000 || slow.Lost != 3 || slow.Loss != 0.001 {
		t.Errorf("%d frames, %d lost, %v", slow.Frames, slow.Lost, slow.Loss)
	}
}

func TestJudge(t *testing.T) {
	var order []string
	ways := []Way{fakeWay("floor", &order, 50), fakeWay("a", &order, 150), fakeWay("b", &order, 170), fakeWay("c", &order, 450)}
	r, err := Run(t.Context(), ways, Options{Rounds: 1, WarmUp: -1, Floor: "floor"})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		goal Goal
		met  bool
		text string
	}{
		{Goal{Way: "b", Base: "a", AtMost: 1.25, Aim: 1.15}, true, "met:     b costs 1.20 × a (1.20–1.20), wanted ≤ 1.25 (aim 1.15)"},
		{Goal{Way: "b", Base: "a", AtMost: 1.1}, false, "not met: b costs 1.20 × a (1.20–1.20), wanted ≤ 1.10"},
		{Goal{Way: "c", Base: "b", AtLeast: 3}, true, "met:     c costs 3.33 × b (3.33–3.33), wanted ≥ 3.00"},
		{Goal{Way: "c", Base: "b", AtLeast: 5}, false, "not met: c costs 3.33 × b (3.33–3.33), wanted ≥ 5.00"},
	}
	for _, tt := range tests {
		f, err := r.Judge(tt.goal)
		if err != nil {
			t.Fatal(err)
		}
		if f.Met != tt.met || f.String() != tt.text {
			t.Errorf("got %v, %q, want %v, %q", f.Met, f, tt.met, tt.text)
		}
	}
	if _, err := r.Judge(Goal{Way: "b", Base: "z"}); err == nil {
		t.Error("a way that was not measured: no error")
	}
}

func TestTable(t *testing.T) {
	var order []string
	ways := []Way{fakeWay("floor", &order, 50), fakeWay("limit", &order, 450), fakeWay("the long way round", &order, 1250)}
	r, err := Run(t.Context(), ways, Options{Rounds: 1, WarmUp: -1, Floor: "floor"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	want := `
way                 ns/frame  net ns   min   max  IQR  net/limit     lost
floor                     50       -     -     -    -          -  0.100 %
limit                    450     400   400   400    0       1.00  0.100 %
the long way round      1250    1200  1200  1200    0       3.00  0.100 %
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestDisturbed(t *testing.T) {
	for _, tt := range []struct {
		disturbed int
		ok        bool
	}{{1, true}, {attempts - 1, true}, {attempts, false}} {
		left := tt.disturbed
		way := Way{Name: "a", Measure: func() (Sample, error) {
			if left > 0 {
				left--
				return Sample{}, ErrDisturbed
			}
			return Sample{Frames: 1, CPU: 1}, nil
		}}
		_, err := Run(t.Context(), []Way{way}, Options{Rounds: 1, WarmUp: -1})
		if (err == nil) != tt.ok || (err != nil && !errors.Is(err, ErrDisturbed)) {
			t.Errorf("disturbed %d times: %v", tt.disturbed, err)
		}
	}
}

func TestRunErrors(t *testing.T) {
	var order []string
	broken := errors.New("broken")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	fails := Way{Name: "fails", Measure: func() (Sample, error) { return Sample{}, broken }}
	idle := Way{Name: "idle", Measure: func() (Sample, error) { return Sample{}, nil }}
	tests := []struct {
		name string
		ctx  context.Context
		ways []Way
		o    Options
		is   error
	}{
		{"a way fails", t.Context(), []Way{fails}, Options{}, broken},
		{"a way sends nothing", t.Context(), []Way{idle}, Options{}, nil},
		{"cancelled", ended, []Way{fakeWay("a", &order, 1)}, Options{}, context.Canceled},
		{"no such floor", t.Context(), []Way{fakeWay("a", &order, 1)}, Options{Floor: "z"}, nil},
		{"no such base", t.Context(), []Way{fakeWay("a", &order, 1)}, Options{Base: "z"}, nil},
		{"only a floor", t.Context(), []Way{fakeWay("a", &order, 1)}, Options{Floor: "a"}, nil},
		{"no way at all", t.Context(), nil, Options{}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Run(tt.ctx, tt.ways, tt.o)
			if err == nil {
				t.Fatalf("no error, got %+v", r)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %v", err, tt.is)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	var order []string
	var out bytes.Buffer
	if _, err := Run(t.Context(), []Way{fakeWay("a", &order, 1)}, Options{Rounds: 2, Progress: &out}); err != nil {
		t.Fatal(err)
	}
	want := "warm-up 1 of 1\nround 1 of 2, about 0s left\nround 2 of 2, about 0s left\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestPerFrame(t *testing.T) {
	if got := (Sample{Frames: 4, CPU: 2 * time.Microsecond}).PerFrame(); math.Abs(got-500) > 1e-9 {
		t.Errorf("got %v ns, want 500", got)
	}
}
