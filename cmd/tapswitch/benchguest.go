package main

import (
	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/guestpath"
)

func newBenchGuest(e *env) *cobra.Command {
	var (
		o      guestpath.Options
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "guest",
		Short: "Compare tapswitch-guest with a guest's own stack",
		Long: `Compare what it costs inside a guest to forward a 64-byte frame by tapswitch-guest
(l2fwd, l3fwd by both ways) and by the kernel, and to drop one by its rules, by tc
and by nftables at the device's ingress. Natively, with a veth and a tap for the
guest's devices.

The cost is the CPU time of the thread that plays the NIC's interrupt. The ways
take turns in rounds; "net" is without what the generator itself costs (floor) in
the same round, with which it drops a frame by a bare XDP_DROP.

It runs in network namespaces of its own and touches nothing else on the machine.
It needs root, Linux 6.6 and two CPUs: let nothing else run on them. Whether wanted
figures are met does not change the exit code.

` + exitCodes,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Rounds < 0 {
				return usagef("--rounds %d: want 1 or more", o.Rounds)
			}
			if err := lab.Isolate(); err != nil {
				return err
			}
			o.Progress = e.stderr
			report, err := guestpath.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				return e.printJSON(report)
			}
			return report.WriteText(e.stdout)
		},
	}
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how `often` each way is measured (default 11)")
	cmd.Flags().BoolVar(&o.Quick, "quick", false, "measure briefly, to see that it works; don't rely on the figures")
	jsonFlag(cmd, &asJSON)
	return cmd
}
