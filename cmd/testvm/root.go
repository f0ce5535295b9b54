package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/testvm/qemu"
)

// version is set by the linker (see the Makefile).
var version = "unknown"

// An env is all that commands have of the world around them.
type env struct {
	stdout, stderr io.Writer
	// running says that a command has begun: an error before that lies in how it
	// was called.
	running bool
}

// The exit codes, which exitCodes documents.
const (
	exitUsage  = 2
	exitFailed = 125
)

const exitCodes = `Exit codes:
  that of the command in the guest; 128 and the signal's number if it was killed
  2    wrong usage
  125  testvm itself failed`

// commands make the subcommands. Each file appends its own in init.
var commands []func(*env) *cobra.Command

// run carries out one command line and gives the exit code.
func run(ctx context.Context, e *env, args []string) int {
	root := newRoot(e)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	exit := (*qemu.ExitError)(nil)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		// What the command has to say it has said; only a signal is silent.
		if exit.Signal != "" {
			fmt.Fprintf(e.stderr, "testvm: %v\n", err)
		}
		return exit.Code
	}
	fmt.Fprintf(e.stderr, "testvm: %v\n", err)
	if !e.running {
		fmt.Fprintf(e.stderr, "Run '%s --help' for how to use it.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// newRoot makes the command tree.
func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "testvm",
		Short: "Run programs in virtual machines with kernels of their own",
		Long: `Run static programs of this machine in fresh virtual machines, with kernels from
Debian. A guest is emulated, so it needs no KVM, and shows what works, not how
fast. It lives in memory, and nothing is left of it.

` + exitCodes,
		Version:           version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRun:  func(*cobra.Command, []string) { e.running = true },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("testvm {{.Version}}\n")
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	for _, make := range commands {
		root.AddCommand(make(e))
	}
	return root
}
