package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

func init() { commands = append(commands, newFDB) }

func newFDB(e *env) *cobra.Command {
	var filter control.FDBFilter
	cmd := newNoun(e, noun[[]control.FDBEntry]{
		name:  "fdb",
		short: "Show where frames for an address go",
		long: `Show the forwarding entries of the bridges that the switch serves.

The path is "fast" if the fast path has the entry, else "bridge". The kernel's age
tells when the bridge last refreshed the entry, "seen" when the fast path last saw
a frame from the address; "-" stands for never. An address that is in use does
not age out, whichever way its frames take.`,
		ask: func(ctx context.Context, c *control.Client) ([]control.FDBEntry, error) {
			return c.FDB(ctx, filter)
		},
		print: e.printFDB,
	})
	cmd.Flags().StringVar(&filter.Bridge, "bridge", "", "only entries of the bridge with this `name`")
	cmd.Flags().StringVar(&filter.Port, "port", "", "only entries behind the port with this `name`; \"host\" for the host itself")
	cmd.Flags().Var(&macFlag{&filter.MAC}, "mac", "only entries for this `address`")
	e.complete(cmd, "bridge", func(ctx context.Context, c *control.Client) (names []string, err error) {
		s, err := c.Status(ctx)
		for _, b := range s.Bridges {
			names = append(names, b.Name)
		}
		return names, err
	})
	e.complete(cmd, "port", func(ctx context.Context, c *control.Client) ([]string, error) {
		ports, err := c.Ports(ctx)
		names := []string{control.HostPort}
		for _, p := range ports {
			names = append(names, p.Name)
		}
		return names, err
	})
	return cmd
}

func (e *env) printFDB(entries []control.FDBEntry) error {
	if len(entries) == 0 {
		_, err := fmt.Fprintln(e.stdout, "No entries.")
		return err
	}
	t := table{columns: []column{
		left("BRIDGE"), right("VLAN"), left("MAC"), left("PORT"), right("IFINDEX"), left("ORIGIN"), left("PATH"),
		right("KERNEL AGE (S)"), right("SEEN (S AGO)"),
	}}
	for _, f := range entries {
		vlan, ifindex, path, seen := "-", "-", "bridge", "-"
		if f.VLAN != 0 {
			vlan = fmt.Sprint(f.VLAN)
		}
		if f.Ifindex != vswitch.Host {
			ifindex = fmt.Sprint(f.Ifindex)
		}
		if f.Fast {
			path = "fast"
		}
		if f.SeenAge != nil {
			seen = fmt.Sprintf("%.1f", *f.SeenAge)
		}
		t.add(f.Bridge, vlan, f.MAC, f.Port, ifindex, f.Origin, path, fmt.Sprintf("%.1f", f.KernelAge), seen)
	}
	return t.print(e.stdout)
}

// A macFlag is a flag whose value is an Ethernet address.
type macFlag struct{ mac *vswitch.MAC }

func (f *macFlag) Type() string { return "mac" }

func (f *macFlag) String() string {
	if f.mac == nil || *f.mac == (vswitch.MAC{}) {
		return ""
	}
	return f.mac.String()
}

func (f *macFlag) Set(s string) (err error) {
	*f.mac, err = vswitch.ParseMAC(s)
	return err
}

// complete lets the shell complete a flag's value by what the daemon knows.
func (e *env) complete(cmd *cobra.Command, flag string, names func(context.Context, *control.Client) ([]string, error)) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		client := e.dial(e.socket)
		defer client.Close()
		known, err := names(cmd.Context(), client)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		slices.Sort(known)
		return known, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // no flag of this name
	}
}
