package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/testvm/demo"
	"github.com/tapswitch/tapswitch/testvm/lab"
)

func init() { commands = append(commands, newLab) }

func newLab(e *env) *cobra.Command {
	var (
		o                   demo.Options
		withLibvirt, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Show the fast path at work, in a lab of its own",
		Long: `Build a host with a bridge, a station on the wire outside and two guests, run
tapswitchd on the host, and check all that a switch has to do:

      wire ─── nic0 ─┐            each of the four is a network namespace with a
                    br0 (host)    real TCP/IP stack of its own; the guests are
  guest0 ── vnet0 ───┤            behind real taps, with checksum and TSO offload
  guest1 ── vnet1 ───┘            as QEMU gives them

It touches nothing else on the machine: the namespaces are private, and whatever
is in them ends with the command. It needs root and takes about a minute, or 10 s
with --quick. Progress goes to stderr, the result to stdout. What its tables mean:

  Ports          The bridge's ports as the daemon has found them. All should be
                 fast in both directions.
  Reachability   Echo requests (ping) between every two stations. FAST FRAMES
                 counts requests and answers that went by the fast path, BRIDGE
                 FRAMES those that the fast path left to the bridge: between
                 stations behind ports all should be fast, while the host's own
                 always go by the bridge.
  Transfers      A file fetched over TCP; both ends hash it, and a row is ok if the
                 hashes are equal. Rates include making and hashing the file, and
                 are medians of 5. BRIDGE is before the daemon started. WITH XDP is
                 the bridge too, with an XDP program on nic0 that does nothing: the
                 lab's NIC is a veth, which copies each frame for XDP, as a real NIC
                 does not. Compare TAPSWITCH with that. LOST counts frames that were
                 dropped at the port to the receiver, for want of room: TCP goes
                 faster until that happens, and sends them anew.
  Verdicts       What the datapath did with each frame that came in by a port, and
                 why. RECEIVED FRAMES is what the kernel has counted at the port since
                 the daemon's start: each frame has one verdict. LOST FRAMES were to
                 leave by the port and lost on the way; a row is ok if that befell
                 nothing but TCP transfers, for want of room.
  Handovers      The daemon ends while 10000 numbered datagrams per second go from
                 the wire into a guest. Killed and started again, its successor
                 adopts the datapath, which has gone on without it. Killed and not
                 started again, the datapath leaves all frames to the bridge when its
                 deadline is over. MEANWHILE FRAMES counts what came in by nic0 and
                 met the VERDICT that it should have while no daemon ran. A row is ok
                 if no datagram was lost or came twice, and the frames went that way.
  Clean stop     What is left of the daemon after its stop: nothing.
  Cost           What a small frame from the NIC to a guest costs the CPU, by the
                 fast path and by other ways; see 'tapswitch bench uplink --help'.
                 A row is ok if no more than 0.1 % of its frames were lost and, for
                 the bridge, if it costs more than the fast path. Whether the wanted
                 ratios below the table are met depends on the machine and does not
                 change the exit code.

With --libvirt the guests are QEMU's, of a libvirtd that is as private as the rest:
they start, get another NIC, are paused and destroyed, and after each step stand the
ports. It takes some 15 s, and needs libvirtd with its QEMU driver.

` + exitCodes,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Daemon, err = findDaemon(cmd.Context(), o.Daemon); err != nil {
				return err
			}
			// The run inside would not hear of a signal from before it began.
			if cmd.Context().Err() != nil {
				return errInterrupted
			}
			if err := lab.Isolate(); err != nil {
				return err
			}
			o.Progress = e.stderr
			if withLibvirt {
				return e.showLibvirtLab(cmd.Context(), o, asJSON)
			}
			report, err := demo.Run(cmd.Context(), o)
			return e.showLab(report, err, asJSON)
		},
	}
	cmd.Flags().StringVar(&o.Daemon, "daemon", "", "`path` of the tapswitchd to run (default: the one beside this command)")
	cmd.Flags().BoolVar(&withLibvirt, "libvirt", false, "show the ports following QEMU guests of a private libvirtd instead")
	cmd.Flags().BoolVar(&o.Quick, "quick", false, "leave out the cost of a frame, and make each transfer once")
	cmd.MarkFlagsMutuallyExclusive("libvirt", "quick")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// findDaemon gives the path of the daemon, by default that beside this program,
// and makes sure that it is one.
func findDaemon(ctx context.Context, path string) (string, error) {
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("finding tapswitchd beside this command: %w", err)
		}
		path = filepath.Join(filepath.Dir(self), "tapswitchd")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("finding tapswitchd: %w", err)
	}
	const advice = "build it by 'make build', or name one by --daemon"
	version, err := exec.CommandContext(ctx, path, "-version").Output()
	switch {
	case ctx.Err() != nil:
		return "", errInterrupted
	case err != nil:
		return "", fmt.Errorf("finding tapswitchd: asking %s for its version: %w: %s", path, err, advice)
	case !strings.HasPrefix(string(version), "tapswitchd "):
		return "", fmt.Errorf("finding tapswitchd: %s is another program: %s", path, advice)
	}
	return path, nil
}

var errInterrupted = errors.New("interrupted")

// showLab prints the report and gives an error if anything in it is not as it
// should be. err is what ended the run early.
func (e *env) showLab(r *demo.Report, err error, asJSON bool) error {
	if errors.Is(err, context.Canceled) {
		return errInterrupted
	}
	show := e.printLab
	if asJSON {
		show = func(r *demo.Report) error { return e.printJSON(r) }
	}
	if printErr := show(r); printErr != nil {
		return errors.Join(err, printErr)
	}
	if len(r.Failures) > 0 {
		failed := fmt.Errorf("%d of %d checks failed: %s", len(r.Failures), len(r.Checks()), strings.Join(r.Failures, "; "))
		err = errors.Join(failed, err)
	}
	return err
}
