// Command tapswitch shows what a running tapswitchd does, and what the fast path
// is worth on this machine.
package main

import (
	"context"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/cmd/hookcall"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	status := run(ctx, &env{
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		getenv: os.Getenv,
		now:    time.Now,
		after:  time.After,
		dial:   control.Dial,

		logHook: hookcall.ToSyslog,
	}, os.Args[1:])
	stop()
	os.Exit(status)
}
