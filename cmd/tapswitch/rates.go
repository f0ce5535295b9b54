package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A rate is what a port did per second between two looks at its counters.
type rate struct {
	Port     string        `json:"port"`
	Ifindex  int           `json:"ifindex"`
	Bridge   string        `json:"bridge"`
	Role     vswitch.Role  `json:"role"`
	Interval float64       `json:"interval_s"`
	Verdicts []verdictRate `json:"verdicts"`
	Merged   []verdictRate `json:"merged"`
	Flushes  float64       `json:"flushes_per_s"`
	Flushed  float64       `json:"flushed_frames_per_s"`
}

type verdictRate struct {
	Verdict vswitch.Verdict `json:"verdict"`
	Frames  float64         `json:"frames_per_s"`
	Meaning string          `json:"meaning"`
}

// rates compares two looks. A port is the same if its ifindex is. What counts
// less than before has begun anew, because its datapath was made again.
func rates(before, after []control.Stats, interval time.Duration) []rate {
	old := map[int]control.Stats{}
	for _, s := range before {
		old[s.Ifindex] = s
	}
	perSecond := func(was, is uint64) float64 {
		if is < was {
			was = 0
		}
		return float64(is-was) / interval.Seconds()
	}
	list := []rate{}
	for _, s := range after {
		was := old[s.Ifindex]
		verdictRates := func(was, is []control.VerdictCount) []verdictRate {
			frames := map[vswitch.Verdict]uint64{}
			for _, v := range was {
				frames[v.Verdict] = v.Frames
			}
			list := []verdictRate{}
			for _, v := range is {
				list = append(list, verdictRate{v.Verdict, perSecond(frames[v.Verdict], v.Frames), v.Meaning})
			}
			return list
		}
		r := rate{
			Port: s.Port, Ifindex: s.Ifindex, Bridge: s.Bridge, Role: s.Role,
			Interval: interval.Seconds(),
			Verdicts: verdictRates(was.Verdicts, s.Verdicts),
			Merged:   verdictRates(was.Merged, s.Merged),
			Flushes:  perSecond(was.Flushes, s.Flushes),
			Flushed:  perSecond(was.FlushedFrames, s.FlushedFrames),
		}
		list = append(list, r)
	}
	return list
}

// watch shows the rates of each interval until ctx is done, which is no error.
func (e *env) watch(ctx context.Context, every time.Duration, show func([]rate) error) error {
	client := e.dial(e.socket)
	defer client.Close()
	before, err := client.Stats(ctx)
	last := e.now()
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-e.after(every):
		}
		var after []control.Stats
		if after, err = client.Stats(ctx); err != nil {
			break
		}
		now := e.now()
		if err = show(rates(before, after, now.Sub(last))); err != nil {
			break
		}
		before, last = after, now
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (e *env) printRates(rates []rate, all bool) error {
	in := table{columns: []column{left("PORT"), right("IFINDEX"), left("BRIDGE"), left("ROLE"), left("VERDICT"), right("FRAMES/S"), left("MEANING")}}
	out := table{columns: []column{left("PORT"), right("IFINDEX"), right("FRAMES OUT/S"), right("FLUSHES/S"), right("FRAMES PER FLUSH")}}
	for _, r := range rates {
		for _, v := range r.Verdicts {
			if v.Frames > 0 || all {
				in.add(r.Port, r.Ifindex, r.Bridge, r.Role, v.Verdict, fmt.Sprintf("%.1f", v.Frames), v.Meaning)
			}
		}
		for _, v := range r.Merged {
			if v.Frames > 0 || all {
				in.add(r.Port, r.Ifindex, r.Bridge, r.Role, "merged "+v.Verdict.String(), fmt.Sprintf("%.1f", v.Frames), v.Meaning)
			}
		}
		if r.Flushes > 0 || all {
			out.add(r.Port, r.Ifindex, fmt.Sprintf("%.1f", r.Flushed), fmt.Sprintf("%.1f", r.Flushes), perFlush(r.Flushed, r.Flushes))
		}
	}
	fmt.Fprintf(e.stdout, "%s\n", e.now().Format(time.TimeOnly))
	if err := e.printInOut(&in, &out, "No frames."); err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.stdout)
	return err
}

// printRatesJSON prints one line per interval, so that a program can read them
// as they come.
func (e *env) printRatesJSON(rates []rate) error {
	if err := json.NewEncoder(e.stdout).Encode(rates); err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}
