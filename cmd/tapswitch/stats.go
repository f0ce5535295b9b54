package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

func init() { commands = append(commands, newStats) }

// minWatch keeps the looking cheap beside what is looked at.
const minWatch = 100 * time.Millisecond

func newStats(e *env) *cobra.Command {
	var all bool
	var every time.Duration
	cmd := newNoun(e, noun[[]control.Stats]{
		name:  "stats",
		short: "Show frames by port and verdict",
		long: `Show how many frames came in by each port, and what became of them: each frame
met one verdict. Below that, how many frames left by each port on the fast path,
and how many the kernel handed to it at once.

Frames are counted since the datapath was made, which outlives restarts of the
daemon. With --watch it prints frames per second instead, again and again until
it is interrupted.`,
		ask:   func(ctx context.Context, c *control.Client) ([]control.Stats, error) { return c.Stats(ctx) },
		print: func(stats []control.Stats) error { return e.printStats(stats, all) },
	})
	cmd.Flags().BoolVar(&all, "all", false, "show verdicts and ports without frames too")
	cmd.Flags().DurationVar(&every, "watch", 0, "print frames per second, every `duration` like 1s; at least 100ms")
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("watch") {
			return once(cmd, args)
		}
		if every < minWatch {
			return usagef("--watch is %s: want %s or more", every, minWatch)
		}
		asJSON, err := cmd.Flags().GetBool("json")
		if err != nil {
			return err
		}
		return e.watch(cmd.Context(), every, func(rates []rate) error {
			if asJSON {
				return e.printRatesJSON(rates)
			}
			return e.printRates(rates, all)
		})
	}
	return cmd
}

func (e *env) printStats(stats []control.Stats, all bool) error {
	in := table{columns: []column{left("PORT"), right("IFINDEX"), left("BRIDGE"), left("ROLE"), left("VERDICT"), right("FRAMES"), left("MEANING")}}
	out := table{columns: []column{left("PORT"), right("IFINDEX"), right("FRAMES OUT"), right("FLUSHES"), right("FRAMES PER FLUSH")}}
	for _, s := range stats {
		for _, v := range s.Verdicts {
			if v.Frames > 0 || all {
				in.add(s.Port, s.Ifindex, s.Bridge, s.Role, v.Verdict, v.Frames, v.Meaning)
			}
		}
		for _, v := range s.Merged {
			if v.Frames > 0 || all {
				in.add(s.Port, s.Ifindex, s.Bridge, s.Role, "merged "+v.Verdict.String(), v.Frames, v.Meaning)
			}
		}
		if s.Flushes > 0 || all && s.Ifindex != 0 {
			out.add(s.Port, s.Ifindex, s.FlushedFrames, s.Flushes, perFlush(float64(s.FlushedFrames), float64(s.Flushes)))
		}
	}
	return e.printInOut(&in, &out, "No frames yet.")
}

// printInOut prints what came in and what went out, or a word if that is nothing.
func (e *env) printInOut(in, out *table, nothing string) error {
	if len(in.rows) == 0 && len(out.rows) == 0 {
		_, err := fmt.Fprintln(e.stdout, nothing)
		return err
	}
	if len(in.rows) > 0 {
		if err := in.print(e.stdout); err != nil {
			return err
		}
	}
	if len(out.rows) == 0 {
		return nil
	}
	if len(in.rows) > 0 {
		fmt.Fprintln(e.stdout)
	}
	return out.print(e.stdout)
}

func perFlush(frames, flushes float64) string {
	if flushes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", frames/flushes)
}
