package main

import (
	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/cmd/hookcall"
	"github.com/tapswitch/tapswitch/cmd/tapswitchd/config"
	"github.com/tapswitch/tapswitch/libvirt"
)

func init() { commands = append(commands, newHook) }

func newHook(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Let libvirt tell the daemon of guests as they start",
		Long: `Let libvirt tell the daemon of guests as they start, by hook scripts of libvirt's.

With the scripts the daemon knows a guest's XML before the guest's first frame.
Without them it hears of guests by libvirt's events, some 600 ms later; until then
an interface with a <filterref> is held by the filter's own rules alone.

The scripts stand beside others in libvirt's qemu.d and network.d, hand over what
libvirt says, and never ask libvirt anything. A guest starts whether the daemon
runs or not, unless the configuration has 'strict = true'.

` + exitCodes,
	}
	cmd.AddCommand(newHookInstall(e), newHookUninstall(e), newHookStatus(e), newHookCall(e, libvirt.HookQEMU), newHookCall(e, libvirt.HookNetwork))
	return cmd
}

// newHookCall makes the command that the scripts call, for a person and for scripts
// that an earlier version has made. Those of this version call tapswitch-hook.
func newHookCall(e *env, driver string) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   driver + " NAME OPERATION [SUB-OPERATION [EXTRA]]",
		Short: "Hand what libvirt's " + driver + " hook says over to the daemon",
		Long: `Hand over to the daemon what libvirt's ` + driver + ` hook says by its arguments, and by
the XML on standard input, of at most 1 MB. The scripts that 'tapswitch hook install'
makes call 'tapswitch-hook ` + driver + `' instead, which does the same and starts faster.

It ends well whatever happens, so that guests start; what goes wrong is said on
standard error and to syslog. With 'strict = true' in the configuration a guest does
not start while the daemon does not answer.`,
		Args: cobra.RangeArgs(2, 4),
		RunE: func(_ *cobra.Command, args []string) error {
			return hookcall.Hook{
				Stdin: e.stdin, Stderr: e.stderr, After: e.after, Log: e.logHook, Socket: e.socket, Config: path,
			}.Run(driver, args)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration `file` (default "+config.DefaultPath+", if it is there)")
	return cmd
}
