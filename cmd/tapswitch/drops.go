package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

func init() { commands = append(commands, newDrops) }

func newDrops(e *env) *cobra.Command {
	return newNoun(e, noun[[]control.Drop]{
		name:  "drops",
		short: "Show frames that were lost on the fast path, and why",
		long: `Show frames that the fast path sent to a port and that were lost on the way, by
the port that they were to leave by. For frames that a port's qdisc or device
dropped the kernel does not tell those of the fast path from the bridge's: these
two reasons count both. What the bridge itself drops is not here.`,
		ask:   func(ctx context.Context, c *control.Client) ([]control.Drop, error) { return c.Drops(ctx) },
		print: e.printDrops,
	})
}

func (e *env) printDrops(drops []control.Drop) error {
	t := table{columns: []column{left("PORT"), right("IFINDEX"), left("REASON"), right("FRAMES")}}
	for _, d := range drops {
		if d.Frames == 0 {
			continue
		}
		t.add(d.Port, d.Ifindex, d.Reason, d.Frames)
		t.note("%s", d.Meaning)
	}
	if len(t.rows) == 0 {
		_, err := fmt.Fprintln(e.stdout, "No frames lost.")
		return err
	}
	return t.print(e.stdout)
}
