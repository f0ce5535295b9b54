// Command tapswitch-hook is what the scripts run that 'tapswitch hook install' puts among
// libvirt's: 'tapswitch hook qemu' and 'tapswitch hook network' as a program of its own,
// which starts in a third of the time.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/tapswitch/tapswitch/cmd/hookcall"
	"github.com/tapswitch/tapswitch/vswitch/control/handover"
)

func main() {
	socket := flag.String("socket", handover.DefaultSocket, "control `path` of the daemon")
	config := flag.String("config", "", "configuration `file` (default: the daemon's, if it is there)")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: tapswitch-hook [flags] qemu|network NAME OPERATION [SUB-OPERATION [EXTRA]] <XML")
		flag.PrintDefaults()
	}
	flag.Parse()
	var args []string
	if flag.NArg() > 0 {
		args = flag.Args()[1:]
	}
	h := hookcall.Hook{Stdin: os.Stdin, Stderr: os.Stderr, After: time.After, Log: hookcall.ToSyslog, Socket: *socket, Config: *config}
	if err := h.Run(flag.Arg(0), args); err != nil {
		fmt.Fprintln(os.Stderr, "tapswitch-hook:", err)
		os.Exit(1)
	}
}
