package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tapswitch/tapswitch/cmd/suggest"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// An env is all that commands have of the world around them.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	now            func() time.Time
	after          func(time.Duration) <-chan time.Time
	dial           func(socket string) *control.Client
	logHook        func(string) // where a hook's warnings go beside stderr; nil for nowhere

	socket string // --socket
	// running says that a command has begun: an error before that lies in how it
	// was called.
	running bool
}

// commands make the subcommands. Each file appends its own in init, so that a
// new noun touches no other file.
var commands []func(*env) *cobra.Command

// run carries out one command line and gives the exit code.
func run(ctx context.Context, e *env, args []string) int {
	root := newRoot(e)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !e.running {
		err = &usageError{err}
	}
	code := exitCode(err)
	if err != nil {
		fmt.Fprintf(e.stderr, "tapswitch: %v\n", err)
	}
	if code == exitUsage {
		fmt.Fprintf(e.stderr, "Run '%s --help' for how to use it.\n", cmd.CommandPath())
	}
	return code
}

// newRoot makes the command tree.
func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "tapswitch",
		Short: "Look into the fast path under libvirt guests",
		Long: `Look into the fast path that tapswitchd puts under a Linux bridge.

Frames for known guests go by the fast path, all others by the bridge, which
stays the authority. A port that can't be fast is held back: its frames go by
the bridge as if tapswitchd were not there, and 'tapswitch ports' says why.

` + exitCodes,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("tapswitch {{.Version}}\n")
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&e.socket, "socket",
		cmp.Or(e.getenv("TAPSWITCH_SOCKET"), control.DefaultSocket),
		"control `path` of the daemon; TAPSWITCH_SOCKET sets another default")
	for _, make := range commands {
		root.AddCommand(make(e))
	}
	root.InitDefaultCompletionCmd()
	help := newHelp()
	e.strict(help)
	root.SetHelpCommand(help)
	e.strict(root)
	return root
}

// newHelp makes a help command that, unlike cobra's, refuses what it does not
// know.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Show how to use a command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil {
				return &usageError{err}
			}
			if len(rest) > 0 {
				return &usageError{unknownCommand(of, rest[0])}
			}
			// Cobra adds these to a command only when it carries it out.
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}

// strict makes the command and all below it refuse arguments that they do not
// declare, and note that they run.
func (e *env) strict(c *cobra.Command) {
	for _, sub := range c.Commands() {
		e.strict(sub)
	}
	if c.Args == nil {
		c.Args = noArgs
	}
	switch run, runE := c.Run, c.RunE; {
	case runE != nil:
		c.RunE = func(cmd *cobra.Command, args []string) error {
			e.running = true
			return runE(cmd, args)
		}
	case run != nil:
		c.Run = func(cmd *cobra.Command, args []string) {
			e.running = true
			run(cmd, args)
		}
	default:
		c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		return unknownCommand(cmd, args[0])
	}
	return fmt.Errorf("%s takes no arguments, have %q", cmd.CommandPath(), args[0])
}

func unknownCommand(parent *cobra.Command, name string) error {
	var known []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			known = append(known, c.Name())
		}
	}
	return fmt.Errorf("unknown command %q for %s: %s", name, parent.CommandPath(), suggest.Hint(name, known))
}

// flagError adds what may have been meant to an error about an unknown flag.
func flagError(cmd *cobra.Command, err error) error {
	unknown := (*pflag.NotExistError)(nil)
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if unknown.GetSpecifiedShortnames() != "" {
		return fmt.Errorf("unknown flag -%s for %s", name, cmd.CommandPath())
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains(known, "--"+f.Name) {
			known = append(known, "--"+f.Name)
		}
	})
	return fmt.Errorf("unknown flag --%s for %s: %s", name, cmd.CommandPath(),
		strings.ReplaceAll(suggest.Hint("--"+name, known), `"`, ""))
}
