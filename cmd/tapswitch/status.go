package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

func init() { commands = append(commands, newStatus) }

func newStatus(e *env) *cobra.Command {
	return newNoun(e, noun[control.Status]{
		name:  "status",
		short: "Show the switch as a whole",
		long: `Show the daemon, whether the fast path is acting, how many frames it took, and
the bridges that it serves.

Frames are counted since the datapath was made, which outlives restarts of the
daemon. "Frames per flush" is how many the kernel hands to a device at once;
the more, the cheaper each.

Guests' NICs that are no ports, such as macvtaps, stand at the end, each with the
reason.`,
		ask:   func(ctx context.Context, c *control.Client) (control.Status, error) { return c.Status(ctx) },
		print: e.printStatus,
	})
}

func (e *env) printStatus(s control.Status) error {
	now := e.now()
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s%s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	line("daemon", "tapswitchd %s, pid %d, running for %s on Linux %s", s.Version, s.PID, span(now.Sub(s.Started)), s.Kernel)
	if late := now.Sub(s.Deadline()); late < 0 {
		line("fast path", "acting; lease of %g s renewed %.1f s ago", s.Lease, now.Sub(s.Renewed).Seconds())
	} else {
		line("fast path", "NOT ACTING: its lease of %g s ended %.1f s ago, all frames go by the bridge", s.Lease, late.Seconds())
	}
	line("frames", "%d redirected, %d passed to the bridge, %d lost", s.Totals.Redirected, s.Totals.Passed, s.Totals.Lost)
	full := ""
	if s.FDB.Full > 0 {
		full = fmt.Sprintf("; no room for %d more, whose frames go by the bridge", s.FDB.Full)
	}
	if s.FDB.Refused > 0 {
		full += fmt.Sprintf("; %d times a port had a new address beyond its limit", s.FDB.Refused)
	}
	line("FDB", "%d of %d entries%s", s.FDB.Entries, s.FDB.Capacity, full)
	adopted := "made by this daemon"
	if s.Datapath.Adopted {
		adopted = "adopted from an earlier daemon"
	}
	line("datapath", "%s, %s; %.1f frames per flush; %d bulk TCP flows", s.Datapath.Pins, adopted, s.Datapath.FramesPerFlush, s.Datapath.BulkFlows)
	line("libvirt", "%s", libvirtLine(s.Libvirt, now))
	for _, w := range s.Warnings {
		line("warning", "%s", w)
	}
	fmt.Fprintln(&b)
	if _, err := fmt.Fprint(e.stdout, b.String()); err != nil {
		return fmt.Errorf("printing status: %w", err)
	}
	if err := e.printBridges(s); err != nil {
		return err
	}
	return e.printPortless(s.Libvirt.Portless)
}

func (e *env) printBridges(s control.Status) error {
	if len(s.Bridges) == 0 {
		_, err := fmt.Fprintln(e.stdout, "No bridge has a guest's tap for a port, so there is nothing to do yet.")
		return err
	}
	t := table{columns: []column{left("BRIDGE"), left("STATE"), right("PORTS"), right("FAST"), right("HELD"), right("FDB ENTRIES")}}
	held := 0
	for _, br := range s.Bridges {
		state := "down"
		if br.Up {
			state = "up"
		}
		held += br.Held
		t.add(br.Name, state, br.Ports, br.Fast, br.Held, br.FDBEntries)
	}
	if err := t.print(e.stdout); err != nil {
		return err
	}
	var hints []string
	if held > 0 {
		hints = append(hints, "'tapswitch ports' says why ports are held back.")
	}
	if s.Totals.Lost > 0 {
		hints = append(hints, "'tapswitch drops' says why frames were lost.")
	}
	if len(hints) > 0 {
		_, err := fmt.Fprintf(e.stdout, "\n%s\n", strings.Join(hints, "\n"))
		return err
	}
	return nil
}

func (e *env) printPortless(nics []control.Portless) error {
	if len(nics) == 0 {
		return nil
	}
	fmt.Fprint(e.stdout, "\nNICs of guests that are no ports:\n")
	t := table{columns: []column{left("DOMAIN"), left("NIC"), left("GUEST MAC"), left("TYPE"), left("WHY")}}
	for _, n := range nics {
		t.add(n.Domain, cmp.Or(n.Alias, "-"), n.MAC, n.Type, n.Why)
	}
	return t.print(e.stdout)
}

func libvirtLine(l control.Libvirt, now time.Time) string {
	since := span(now.Sub(l.Since))
	switch {
	case !l.Asked:
		return "not asked; ports follow the kernel alone"
	case !l.Connected:
		return fmt.Sprintf("not answering for %s, ports follow the kernel alone: %s", since, l.Error)
	}
	return fmt.Sprintf("%s, for %s; %d domains, %d of their NICs are ports", l.Socket, since, l.Domains, l.Guests)
}

// span gives a duration in its two largest units, for people.
func span(d time.Duration) string {
	d = max(d, 0).Truncate(time.Second)
	days, d := d/(24*time.Hour), d%(24*time.Hour)
	h, m, s := d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second
	switch {
	case days > 0:
		return fmt.Sprintf("%d d %d h", days, h)
	case h > 0:
		return fmt.Sprintf("%d h %d min", h, m)
	case m > 0:
		return fmt.Sprintf("%d min %d s", m, s)
	}
	return fmt.Sprintf("%d s", s)
}
