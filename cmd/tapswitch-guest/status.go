package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tapswitch/tapswitch/guestbpf"
)

// A state is what is attached to one device, as status shows it.
type state struct {
	Device   string        `json:"device"`
	Ifindex  int           `json:"ifindex"`
	Mode     guestbpf.Mode `json:"mode"`
	CPUs     []int         `json:"cpus,omitempty"`
	Partners []string      `json:"partners,omitempty"`
	Rules    int           `json:"rules"`
}

func (e *env) status(_ context.Context, args []string) error {
	if _, err := e.parse("status", args, 0, nil); err != nil {
		return err
	}
	list, err := e.guest.List()
	if err != nil {
		return err
	}
	states := []state{}
	for _, a := range list {
		states = append(states, state{a.Device, a.Ifindex, a.Mode, a.CPUs, a.Partners, len(a.Rules)})
	}
	if e.asJSON {
		return e.printJSON(states)
	}
	if len(states) == 0 {
		_, err := io.WriteString(e.stdout, "nothing is attached\n")
		return err
	}
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DEVICE\tMODE\tDETAILS")
	for _, s := range states {
		details := "-"
		switch s.Mode {
		case guestbpf.Drop:
			details = fmt.Sprintf("%d rules", s.Rules)
		case guestbpf.L2fwd, guestbpf.L3fwdFIB, guestbpf.L3fwdRoutes:
			details = "to " + strings.Join(s.Partners, ", ")
		}
		if s.CPUs != nil {
			details += fmt.Sprintf(", on CPUs %v", s.CPUs)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.Device, s.Mode, details)
	}
	return w.Flush()
}

func (e *env) stats(ctx context.Context, args []string) error {
	var (
		watch    bool
		interval time.Duration
	)
	_, err := e.parse("stats", args, 0, func(f *flag.FlagSet) {
		f.BoolVar(&watch, "watch", false, "")
		f.DurationVar(&interval, "interval", time.Second, "")
	})
	if err != nil {
		return err
	}
	if interval <= 0 {
		return usagef("stats wants an interval above 0, have %v", interval)
	}
	list, err := e.guest.List()
	if err != nil {
		return err
	}
	if !watch {
		return e.printStats(list, 0)
	}
	for {
		before, began := list, time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-e.after(interval):
		}
		if list, err = e.guest.List(); err != nil {
			return err
		}
		if err := e.printStats(since(before, list), time.Since(began)); err != nil {
			return err
		}
	}
}

// since gives what was counted between two looks. What was attached meanwhile is
// counted from its beginning.
func since(before, now []guestbpf.Attachment) []guestbpf.Attachment {
	then := map[string]guestbpf.Count{}
	eachCount(before, func(key string, c *guestbpf.Count) { then[key] = *c })
	eachCount(now, func(key string, c *guestbpf.Count) {
		if old := then[key]; old.Frames <= c.Frames && old.Bytes <= c.Bytes {
			c.Frames -= old.Frames
			c.Bytes -= old.Bytes
		}
	})
	return now
}

func eachCount(list []guestbpf.Attachment, do func(key string, c *guestbpf.Count)) {
	for _, a := range list {
		for i := range a.Verdicts {
			do(fmt.Sprint(a.Ifindex, " ", a.Verdicts[i].Verdict), &a.Verdicts[i].Count)
		}
		for i, r := range a.Rules {
			do(fmt.Sprint(a.Ifindex, " ", r.Line, " ", r.Rule), &a.Rules[i].Count)
		}
	}
}

// printStats prints counters, or rates if they are of an interval.
func (e *env) printStats(list []guestbpf.Attachment, interval time.Duration) error {
	if e.asJSON {
		if interval == 0 {
			return e.printJSON(list)
		}
		return e.printJSON(map[string]any{"seconds": interval.Seconds(), "counted": list})
	}
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	if interval == 0 {
		fmt.Fprintln(w, "FRAMES\tBYTES\t  DEVICE")
	} else {
		fmt.Fprintln(w, "FRAMES/S\tMBIT/S\t  DEVICE")
	}
	line := func(c guestbpf.Count, what string) {
		if interval == 0 {
			fmt.Fprintf(w, "%d\t%d\t  %s\n", c.Frames, c.Bytes, what)
			return
		}
		fmt.Fprintf(w, "%.0f\t%.1f\t  %s\n", float64(c.Frames)/interval.Seconds(),
			float64(c.Bytes)*8/1e6/interval.Seconds(), what)
	}
	for _, a := range list {
		for _, v := range a.Verdicts {
			if v.Frames > 0 {
				line(v.Count, a.Device+"  "+v.Verdict)
			}
		}
		for _, r := range a.Rules {
			line(r.Count, fmt.Sprintf("%s  line %d: %s", a.Device, r.Line, r.Rule))
		}
	}
	return w.Flush()
}
