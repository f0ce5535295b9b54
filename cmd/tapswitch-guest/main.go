// Command tapswitch-guest drops, reflects and forwards frames inside a guest, by
// native XDP on its virtio_net devices.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/tapswitch/tapswitch/guestbpf"
)

var version = "unknown" // set by the Makefile

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	e := &env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, after: time.After, ready: tellSystemd}
	code := e.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// tellSystemd lets a unit of Type=notify go on. Without systemd nobody hears.
func tellSystemd() {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	if c, err := net.Dial("unixgram", socket); err == nil {
		_, _ = io.WriteString(c, "READY=1")
		c.Close()
	}
}

// An env is all that commands have of the world around them.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	after          func(time.Duration) <-chan time.Time
	ready          func() // called by a command that goes on once it is at work

	guest  guestbpf.Guest
	asJSON bool
}

// The exit codes, as tapswitch has them.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `Drop, reflect and forward frames inside a guest, by native XDP. Needs root and
Linux 5.10.

Usage:
  tapswitch-guest attach pass DEV            count frames
  tapswitch-guest attach drop DEV --rules FILE
                                             drop frames by rules; - reads them
                                             from standard input
  tapswitch-guest attach reflect DEV         send unicast frames back
  tapswitch-guest attach l2fwd DEV --to DEV  join two devices as if by a wire
      [--dest MAC]                           destination of frames that leave by --to
      [--return-dest MAC]                    and of those that come back
  tapswitch-guest attach l3fwd DEV... --fib  route packets between devices as the
                                             kernel answers for each
  tapswitch-guest attach l3fwd DEV... --routes --foreground
                                             route them by tables that follow the
                                             kernel's as long as the command runs
  tapswitch-guest attach cpumap DEV... --cpus LIST [--then MODE ...]
                                             spread frames over CPUs by flow, where
                                             they meet pass, drop, l2fwd or l3fwd
  tapswitch-guest status                     show what is attached
  tapswitch-guest stats [--watch] [--interval 1s]
                                             show counters, or rates
  tapswitch-guest detach DEV | --all         take off what was attached
  tapswitch-guest doctor [DEV...]            say whether native XDP works on devices,
                                             and what to change; it tries that on
                                             those without a program
  tapswitch-guest version

What is attached stays when the command ends, and attaching again replaces it in
one step. With --foreground, attach waits, and detaches when it is interrupted.
A program of somebody else's is never replaced.

All commands take --json, and --pins DIR for another directory than
` + guestbpf.DefaultPins + `.

Exit codes:
  0  fine
  1  failed
  2  wrong usage
`

// A usageError says that the command was called in a way that it can't be.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

var commands = map[string]func(*env, context.Context, []string) error{
	"attach": (*env).attach,
	"detach": (*env).detach,
	"status": (*env).status,
	"stats":  (*env).stats,
	"doctor": (*env).doctor,
	"version": func(e *env, _ context.Context, args []string) error {
		if _, err := e.parse("version", args, 0, nil); err != nil {
			return err
		}
		if e.asJSON {
			return e.printJSON(map[string]string{"version": version})
		}
		_, err := fmt.Fprintln(e.stdout, "tapswitch-guest", version)
		return err
	},
}

// run carries out one command line and gives the exit code.
func (e *env) run(ctx context.Context, args []string) int {
	err := e.dispatch(ctx, args)
	if err == nil {
		return exitFine
	}
	fmt.Fprintf(e.stderr, "tapswitch-guest: %v\n", err)
	if errors.As(err, new(*usageError)) {
		fmt.Fprintln(e.stderr, "Run 'tapswitch-guest --help' for how to use it.")
		return exitUsage
	}
	return exitFailed
}

func (e *env) dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usagef("no command is given: want attach, detach, status, stats, doctor or version")
	}
	for _, a := range args {
		if a == "--help" || a == "-help" || a == "-h" || args[0] == "help" {
			_, err := io.WriteString(e.stdout, usage)
			return err
		}
	}
	command := commands[strings.TrimLeft(args[0], "-")]
	if command == nil {
		return usagef("%q is no command: want attach, detach, status, stats, doctor or version", args[0])
	}
	return command(e, ctx, args[1:])
}
