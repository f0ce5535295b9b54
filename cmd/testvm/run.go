package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/testvm/initramfs"
	"github.com/tapswitch/tapswitch/testvm/kernel"
	"github.com/tapswitch/tapswitch/testvm/qemu"
)

func init() { commands = append(commands, newRun) }

func newRun(e *env) *cobra.Command {
	var (
		m           qemu.Machine
		files, nics []string
		console     bool
		dir         string
	)
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT]...",
		Short: "Run a static program in a fresh guest",
		Long: `Run a static program of this machine in a fresh guest, as root, with nothing
beside it but what --file adds. What it writes comes as it writes it.

The guest has proc, sysfs, devtmpfs, bpffs, tracefs, debugfs and cgroup2 at their
usual places, and lo is up. Its kernel loads no module by itself: name all that
the program needs, as in --modules bridge,veth,tun,8021q.

` + exitCodes,
		Example: `  CGO_ENABLED=0 go test -c -o /tmp/ ./vswitch/bridge
  testvm run --kernel 6.12 --modules bridge,veth,tun -- /tmp/bridge.test -test.v`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			program, err := findProgram(args[0])
			if err != nil {
				return err
			}
			inside := "/bin/" + filepath.Base(program)
			m.Files = map[string]string{inside: program}
			for _, f := range files {
				path, source, ok := strings.Cut(f, "=")
				if !ok || path == "" || source == "" {
					return fmt.Errorf("adding %q: want PATH-IN-GUEST=PATH", f)
				}
				m.Files[path] = source
			}
			for _, n := range nics {
				nic, err := parseNIC(n)
				if err != nil {
					return err
				}
				m.NICs = append(m.NICs, nic)
			}
			m.Log = e.stderr
			if console {
				m.Console = e.stderr
				m.Append += " loglevel=7"
			}
			if m.Init, err = self(); err != nil {
				return err
			}
			return e.runIn(cmd.Context(), m, qemu.Command{
				Args:   append([]string{inside}, args[1:]...),
				Dir:    dir,
				Stdout: e.stdout,
				Stderr: e.stderr,
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.Kernel, "kernel", qemu.DefaultKernel, "`name` of the kernel: "+strings.Join(kernel.Names(), ", "))
	f.StringSliceVar(&m.Modules, "modules", nil, "`names` of modules to load, with what they need")
	f.IntVar(&m.CPUs, "cpus", 2, "`number` of CPUs")
	f.IntVar(&m.Memory, "memory", 1024, "memory in `MiB`; all files lie in it")
	f.DurationVar(&m.Timeout, "timeout", 0, "end the guest after this `time` (default 5m)")
	f.StringArrayVar(&files, "file", nil, "add a file or directory: `PATH-IN-GUEST=PATH`; may be repeated")
	f.StringArrayVar(&m.Env, "env", nil, "add `NAME=VALUE` to the environment; may be repeated")
	f.StringVar(&dir, "chdir", "/", "run the command in this `directory` of the guest")
	f.StringArrayVar(&nics, "nic", nil, "add a NIC on a tap of this machine, `TAP[,mac=MAC][,queues=N][,OPTION]...`, with\nQEMU's options of virtio-net-pci; may be repeated")
	f.StringVar(&m.Type, "machine", "q35", "QEMU's machine `type`")
	f.StringVar(&m.Append, "append", "", "`text` to add to the kernel's command line")
	f.BoolVar(&console, "console", false, "show what the guest's kernel says on stderr")
	return cmd
}

// runIn runs the command in a fresh guest.
func (e *env) runIn(ctx context.Context, m qemu.Machine, c qemu.Command) error {
	err := qemu.Run(ctx, m, c)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}

// findProgram gives the path of a program that can run in a guest.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("finding the program to run: %w", err)
	}
	return path, initramfs.CheckStatic(path)
}

// self gives the path of this program if it can run in a guest; else, as for any
// test, the guest's first process is built.
func self() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	if initramfs.CheckStatic(path) != nil {
		return "", nil
	}
	return path, nil
}

// parseNIC reads a NIC as --nic has it.
func parseNIC(s string) (qemu.NIC, error) {
	parts := strings.Split(s, ",")
	if slices.Contains(parts, "") {
		return qemu.NIC{}, fmt.Errorf("adding NIC %q: want TAP and then, after commas, mac=MAC, queues=N or QEMU's options", s)
	}
	n := qemu.NIC{Tap: parts[0]}
	for _, p := range parts[1:] {
		switch name, value, _ := strings.Cut(p, "="); name {
		case "mac":
			n.MAC = value
		case "queues":
			queues, err := strconv.Atoi(value)
			if err != nil || queues < 1 {
				return n, fmt.Errorf("adding NIC %q: %q is no number of queues", s, value)
			}
			n.Queues = queues
		default:
			n.Options = append(n.Options, p)
		}
	}
	return n, nil
}
