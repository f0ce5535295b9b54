package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/mix"
)

func newBenchMix(e *env) *cobra.Command {
	var (
		o      mix.Options
		plots  string
		order  bool
		bytes  string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "mix",
		Short: "Compare bridge and fast path under real TCP and UDP",
		Long: `Compare the plain bridge and the fast path under loads with real TCP/IP stacks on
both ends, over IPv4 and IPv6. The ways take turns within each round:

  bridge           the plain bridge, with GRO on the NIC
  bridge + PASS    the same with an XDP program on the NIC that does nothing: the
                   lab's NIC is a veth, which copies each frame for XDP, as a real
                   NIC does not. Compare the next two with this one
  all by XDP       the fast path on a NIC, told by bulk_frame = 0 not to merge bulk TCP
  tapswitch        the fast path as it serves a NIC
  tapswitch, tc    the fast path as it serves a veth, by tc alone: compare it with the
                   plain bridge

The loads, by class:

  bulk   one and eight TCP streams, into a guest, out of one, and between two
  rr     requests and answers of 64 bytes from the wire to a guest, 1 to 64 at once
  udp    datagrams of 64 bytes from the wire to a guest at fixed rates
  ack    a download by a guest that sends on 1000 other flows, 10000 times 2896
         bytes per second in all, whose acknowledgements come in by the NIC
  mix    a download by a guest, 8 requests at once and 20000 datagrams per second
  flood  8 requests at once to a guest, while another sends 20000 frames per second
         from a million addresses

` + mix.About + `

"resent", "out of order" and "DSACKs" are the stations' TCP counters: segments sent
again, segments received before one that was sent earlier (each is answered by a
duplicate acknowledgement), and reports of segments received twice. TCP goes faster
until a queue is full, so some are lost by every way.

With --order it does something else: it sends steady and bursty flows into a guest,
by the bridge and by the fast path, none of them more at once than the rings take,
and counts the segments that came out of order. The exit code tells whether the fast
path had no more of them than the bridge.

It runs in network namespaces of its own and touches nothing else on the machine.
It needs root, Linux 6.6 and two CPUs: let nothing else run on them. It takes some
ten minutes. Whether wanted figures are met does not change the exit code.

` + exitCodes,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Rounds < 0 {
				return usagef("--rounds %d: want 1 or more", o.Rounds)
			}
			if o.Class != "" && !slices.Contains(mix.Classes, o.Class) {
				return usagef("--only %s: want one of %s", o.Class, strings.Join(mix.Classes, ", "))
			}
			size, err := parseBytes(bytes)
			if err != nil {
				return err
			}
			if o.Daemon, err = findDaemon(cmd.Context(), o.Daemon); err != nil {
				return err
			}
			if cmd.Context().Err() != nil {
				return errInterrupted
			}
			if err := lab.Isolate(); err != nil {
				return err
			}
			o.Progress = e.stderr
			if order {
				r, err := mix.CheckOrder(cmd.Context(), mix.OrderOptions{Daemon: o.Daemon, Bytes: size, Progress: e.stderr})
				if err != nil {
					return err
				}
				return e.showOrder(r, asJSON)
			}
			report, err := mix.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if plots != "" {
				if err := report.Plot(plots, cmd.CommandPath()+flagsOf(o)); err != nil {
					return err
				}
			}
			if asJSON {
				return e.printJSON(report)
			}
			return report.WriteText(e.stdout)
		},
	}
	cmd.Flags().StringVar(&o.Daemon, "daemon", "", "`path` of the tapswitchd to run (default: the one beside this command)")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how `often` each load is measured by each way (default 5, or 1 with --quick)")
	cmd.Flags().StringVar(&o.Class, "only", "", fmt.Sprintf("the only `class` of load to measure: %s", strings.Join(mix.Classes, ", ")))
	cmd.Flags().StringVar(&plots, "plot", "", "`directory` to write pictures of the ratios into, as SVG and PNG")
	cmd.Flags().BoolVar(&order, "order", false, "count segments that come out of order, instead of measuring")
	cmd.Flags().StringVar(&bytes, "bytes", "300M", "how `much` --order sends by each way; with k, M or G for 10³, 10⁶ or 10⁹")
	cmd.Flags().BoolVar(&o.NoOffloads, "no-offloads", false, "have guests that take no merged frames and leave nothing to the host")
	cmd.Flags().BoolVar(&o.Quick, "quick", false, "measure briefly, to see that it works; don't rely on the figures")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// flagsOf gives the flags that changed what was measured, for a picture's caption.
func flagsOf(o mix.Options) (flags string) {
	if o.Rounds != 0 {
		flags += fmt.Sprintf(" --rounds %d", o.Rounds)
	}
	if o.NoOffloads {
		flags += " --no-offloads"
	}
	if o.Quick {
		flags += " --quick"
	}
	if o.Class != "" {
		flags += " --only " + o.Class
	}
	return flags
}

// parseBytes reads a number of bytes like 300M.
func parseBytes(text string) (int64, error) {
	number, unit := text, int64(1)
	for suffix, u := range map[string]int64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if n, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = n, u
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/unit {
		return 0, usagef("--bytes %s: want a number like 300M or 10G", text)
	}
	return n * unit, nil
}

// showOrder prints what came out of order, and gives an error if the fast path is to
// blame.
func (e *env) showOrder(r *mix.OrderReport, asJSON bool) error {
	var err error
	if asJSON {
		err = e.printJSON(r)
	} else {
		err = r.WriteText(e.stdout)
	}
	if err == nil && !r.OK {
		err = errors.New("the fast path reorders segments more than the bridge")
	}
	return err
}
