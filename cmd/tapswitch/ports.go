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
below the port. The hook is where the fast path meets the port's frames.

Domain, NIC, the guest's own address, its model and its pairs of queues are what
libvirt tells; without libvirt, and for taps that are not its own, there are none.`,
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
		left("DOMAIN"), left("NIC"), left("GUEST MAC"), left("MODEL"), right("QUEUES"),
	}}
	for _, p := range ports {
		cells := []any{p.Bridge, p.Name, p.Ifindex, p.Role, p.Kind, p.MAC, p.MTU, p.State, cmp.Or(p.Hook, "-")}
		if g := p.Guest; g != nil {
			name := g.Domain
			if g.Paused {
				name += " (paused)"
			}
			cells = append(cells, name, cmp.Or(g.Alias, "-"), g.MAC, cmp.Or(g.Model, "-"), g.Queues)
		} else {
			cells = append(cells, "-", "-", "-", "-", "-")
		}
		t.add(cells...)
		for _, h := range p.Held {
			left := ""
			if !h.Until.IsZero() {
				left = fmt.Sprintf("; %s left", span(h.Until.Sub(e.now())))
			}
			t.note("%s (%s): %s%s", heldWord(h.Direction), h.Code, h.Text, left)
		}
	}
	return t.print(e.stdout)
}

// heldWord says in which direction a port is held.
func heldWord(d vswitch.Direction) string {
	switch d {
	case vswitch.Both:
		return "held"
	case 0:
		return "note"
	}
	return "held " + d.String()
}
