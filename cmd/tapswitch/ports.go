package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

func init() { commands = append(commands, newPorts) }

func newPorts(e *env) *cobra.Command {
	return newNoun(e, noun[[]control.Port]{
		name:  "ports",
		short: "Show the ports, which are fast, and why others are not",
		long: `Show every port of the bridges that the switch serves.

A port's state is "fast"; "fast in" or "fast out" if only frames that come in or
leave by it are; or "held" if all its frames go by the bridge. Each reason stands
below the port. The hook is where the fast path meets the port's frames.`,
		ask:   func(ctx context.Context, c *control.Client) ([]control.Port, error) { return c.Ports(ctx) },
		print: e.printPorts,
	})
}

func (e *env) printPorts(ports []control.Port) error {
	if len(ports) == 0 {
		_, err := fmt.Fprintln(e.stdout, "No ports: no bridge has a guest's tap for a port.")
		return err
	}
	t := table{columns: []column{
		left("BRIDGE"), left("PORT"), right("IFINDEX"), left("ROLE"), left("KIND"), left("MAC"),
		right("MTU (BYTES)"), left("STATE"), left("HOOK"),
	}}
	for _, p := range ports {
		t.add(p.Bridge, p.Name, p.Ifindex, p.Role, p.Kind, p.MAC, p.MTU, p.State, cmp.Or(p.Hook, "-"))
		for _, h := range p.Held {
			what := "held " + h.Direction.String()
			switch h.Direction {
			case vswitch.Both:
				what = "held"
			case 0:
				what = "note"
			}
			left := ""
			if !h.Until.IsZero() {
				left = fmt.Sprintf("; %s left", span(h.Until.Sub(e.now())))
			}
			t.note("%s (%s): %s%s", what, h.Code, h.Text, left)
		}
	}
	return t.print(e.stdout)
}
