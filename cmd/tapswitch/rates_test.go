package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

// watch runs a command whose clock goes on by 2 s at each look, until it has
// looked n times.
func watch(t *testing.T, n int, args ...string) *console {
	t.Helper()
	c := newConsole(t, controltest.Sample())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	now := controltest.Now
	c.now = func() time.Time { return now }
	c.after = func(d time.Duration) <-chan time.Time {
		if n--; n == 0 {
			cancel()
			return nil
		}
		// Later than asked for, as on a busy machine: rates are by the clock.
		now = now.Add(2 * d)
		ch := make(chan time.Time, 1)
		ch <- now
		return ch
	}
	if code := c.run(ctx, args...); code != exitFine || c.stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %q, want 0 and none", code, &c.stderr)
	}
	return c
}

func TestWatch(t *testing.T) {
	golden(t, "stats-watch.txt", watch(t, 3, "stats", "--watch", "1s").stdout.Bytes())
}

func TestWatchJSON(t *testing.T) {
	c := watch(t, 3, "stats", "--watch", "1s", "--json")
	lines := strings.Split(strings.TrimSpace(c.stdout.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want one for each of 2 intervals: %s", len(lines), &c.stdout)
	}
	for _, l := range lines {
		var got []rate
		if err := json.Unmarshal([]byte(l), &got); err != nil {
			t.Fatal(err)
		}
		if len(got) != 4 || got[0].Interval != 2 || got[0].Verdicts[0].Frames != 600000 || got[0].Flushes != 1.5 {
			t.Errorf("rates %+v, want those of 3 ports and none over 2 s, half of what the counters grew by", got)
		}
	}
	golden(t, "stats-watch.json", c.stdout.Bytes())
}

func TestRates(t *testing.T) {
	port := func(ifindex int, redirected, flushes uint64) control.Stats {
		return control.Stats{Port: "vnet0", Ifindex: ifindex, Flushes: flushes, Verdicts: []control.VerdictCount{
			{Verdict: vswitch.Redirected, Frames: redirected},
		}}
	}
	type result struct{ Frames, Flushes float64 }
	for _, tt := range []struct {
		name          string
		before, after control.Stats
		want          result
	}{
		{"grown", port(1, 100, 10), port(1, 300, 14), result{100, 2}},
		{"still", port(1, 100, 10), port(1, 100, 10), result{0, 0}},
		{"made again", port(1, 100, 10), port(1, 30, 4), result{15, 2}},
		{"another device of the same name", port(1, 100, 10), port(2, 300, 12), result{150, 6}},
	} {
		got := rates([]control.Stats{tt.before}, []control.Stats{tt.after}, 2*time.Second)
		if len(got) != 1 {
			t.Fatalf("%s: %d rates, want 1", tt.name, len(got))
		}
		if d := cmp.Diff(tt.want, result{got[0].Verdicts[0].Frames, got[0].Flushes}); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}
