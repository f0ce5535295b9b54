// Command testvm runs static programs in virtual machines with kernels of their
// own.
package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/qemu/guest"
)

func main() {
	guest.Main() // this program is the guest's first process too
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	code := run(ctx, &env{stdout: os.Stdout, stderr: os.Stderr}, os.Args[1:])
	stop()
	os.Exit(code)
}
