package main

import (
	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/uplink"
)

func init() { commands = append(commands, newBench) }

func newBench(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a frame costs on this machine",
		Long:  "Measure what a frame costs on this machine, by the fast path and by others.",
	}
	cmd.AddCommand(newBenchUplink(e), newBenchMix(e), newBenchGuest(e))
	return cmd
}

func newBenchUplink(e *env) *cobra.Command {
	var (
		o      uplink.Options
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "uplink",
		Short: "Compare the ways from a NIC to a guest",
		Long: `Compare what it costs to bring a 64-byte frame from a NIC to a guest's tap: by the
fast path, by the bridge with br_netfilter off and with the kernel's default, by
tc, and by the least that an XDP redirect can do (limit). A second table shows how
the fast path's cost grows with forwarding entries and ports.

The cost is the CPU time of the thread that plays the NIC's interrupt. The ways
take turns in rounds; "net" is without what the generator itself costs (floor) in
the same round. Each burst of 4096 frames waits for the guest to have read the one
before, and lost frames are counted.

It runs in network namespaces of its own and touches nothing else on the machine.
It needs root, Linux 6.6 and two CPUs, of which one plays the NIC and one the
guest: let nothing else run on them. It takes some two minutes. Whether wanted
figures are met does not change the exit code.

` + exitCodes,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkBench(o); err != nil {
				return err
			}
			if err := lab.Isolate(); err != nil {
				return err
			}
			o.Progress = e.stderr
			report, err := uplink.Run(cmd.Context(), withoutGrowth(o))
			if err != nil {
				return err
			}
			if asJSON {
				return e.printJSON(report)
			}
			return report.WriteText(e.stdout)
		},
	}
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how `often` each way is measured (default 11, or 3 with --quick)")
	cmd.Flags().IntVar(&o.Entries, "entries", 32768, "most forwarding `entries` in the second table; 0 leaves it out")
	cmd.Flags().IntVar(&o.Ports, "ports", 256, "most guest `ports` in the second table; 0 leaves it out")
	cmd.Flags().BoolVar(&o.Quick, "quick", false, "measure briefly, to see that it works; don't rely on the figures")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// The most that the datapath takes besides the NIC.
const (
	maxBenchEntries = 65536
	maxBenchPorts   = 1000
)

// checkBench refuses what can't be measured, before anything is set up.
func checkBench(o uplink.Options) error {
	switch {
	case o.Rounds < 0:
		return usagef("--rounds %d: want 1 or more", o.Rounds)
	case o.Entries < 0 || o.Entries > maxBenchEntries:
		return usagef("--entries %d: want 0 to %d", o.Entries, maxBenchEntries)
	case o.Ports < 0 || o.Ports > maxBenchPorts:
		return usagef("--ports %d: want 0 to %d", o.Ports, maxBenchPorts)
	}
	return nil
}

// withoutGrowth says in uplink's terms that 0 leaves the second table out.
func withoutGrowth(o uplink.Options) uplink.Options {
	if o.Entries == 0 || o.Ports == 0 {
		o.Entries, o.Ports = -1, -1
	}
	return o
}
