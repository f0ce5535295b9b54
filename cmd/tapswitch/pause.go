package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

func init() { commands = append(commands, newPause, newResume) }

func newPause(e *env) *cobra.Command {
	var d time.Duration
	cmd := e.newPauseVerb("pause", "Send a port's frames by the bridge for a while, to capture them",
		`Send all frames of a port, or of all ports of a bridge, by the bridge, so that
tcpdump sees them and netfilter's counters count them. It is in force when the
command returns.

The pause ends by itself after the time given by --for, or earlier by 'tapswitch
resume', or when tapswitchd is restarted or the port goes. To pause again sets
the time anew.`,
		func(ctx context.Context, c *control.Client, name string) (control.Pause, error) {
			return c.Pause(ctx, name, d)
		},
		func(p control.Pause) string {
			return fmt.Sprintf("%s until %s; 'tapswitch resume %s' ends it sooner", goByBridge(p), clockTime(p.Until), p.Name)
		})
	cmd.Flags().DurationVar(&d, "for", control.DefaultPause, fmt.Sprintf("how long, a `duration` like 60s; %s to %s", control.MinPause, control.MaxPause))
	ask := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if d < control.MinPause || d > control.MaxPause {
			return usagef("--for is %s: want %s to %s", d, control.MinPause, control.MaxPause)
		}
		return ask(cmd, args)
	}
	return cmd
}

func newResume(e *env) *cobra.Command {
	return e.newPauseVerb("resume", "End a pause",
		`End the pause of a port, or of a bridge and each of its ports.`,
		func(ctx context.Context, c *control.Client, name string) (control.Pause, error) {
			return c.Resume(ctx, name)
		},
		func(p control.Pause) string {
			switch {
			case p.Still != "":
				return fmt.Sprintf("%s until %s, because %s is paused; 'tapswitch resume %[3]s' ends that", goByBridge(p), clockTime(p.Until), p.Still)
			case p.Ended:
				return fmt.Sprintf("the pause of %s has ended", p.Name)
			}
			return p.Name + " was not paused"
		})
}

func goByBridge(p control.Pause) string {
	if len(p.Ports) == 1 {
		return fmt.Sprintf("%s goes by the bridge", p.Ports[0])
	}
	return fmt.Sprintf("%s go by the bridge", strings.Join(p.Ports, ", "))
}

// clockTime gives a time of day in the zone in which the daemon told it.
func clockTime(t time.Time) string { return t.Format("2006-01-02 15:04:05 MST") }

// newPauseVerb makes a command that changes the pause of a port or bridge.
func (e *env) newPauseVerb(
	name, short, long string,
	ask func(context.Context, *control.Client, string) (control.Pause, error), tell func(control.Pause) string,
) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   name + " PORT|BRIDGE",
		Short: short,
		Long:  long + "\n\n" + exitCodes,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%s takes one port or bridge, have %d", cmd.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client := e.dial(e.socket)
			defer client.Close()
			p, err := ask(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return e.printJSON(p)
			}
			if _, err = fmt.Fprintln(e.stdout, printable(tell(p))); err != nil {
				return fmt.Errorf("printing the answer: %w", err)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			client := e.dial(e.socket)
			defer client.Close()
			ports, err := client.Ports(cmd.Context())
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, p := range ports {
				names = append(names, p.Bridge, p.Name)
			}
			slices.Sort(names)
			return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
