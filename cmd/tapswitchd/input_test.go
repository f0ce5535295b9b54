package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// refuses runs a program that is to end by itself with an exit status, and
// checks that it says so in these words.
func refuses(t *testing.T, cmd *lab.Cmd, status int, words ...string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != status {
		t.Errorf("%v ends with %v, want exit status %d\n%s", cmd.Args, err, status, out)
	}
	for _, w := range words {
		if !strings.Contains(string(out), w) {
			t.Errorf("%v says\n%s\nwant %q in it", cmd.Args, out, w)
		}
	}
}

// daemon is a command that runs a daemon on a node, which ends if it does start.
func daemonOn(t *testing.T, n *lab.Node, args ...string) *lab.Cmd {
	t.Helper()
	return n.Command(within(t, 10*time.Second), daemonPath, args...)
}

// configFile writes a configuration.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tapswitch.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// bpffs lists the BPF file system.
func bpffs(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir("/sys/fs/bpf", func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// Whatever the daemon can't start with, it says what, and leaves the host as it is.
func TestInputOfNewDaemon(t *testing.T) {
	h := newLab(t, lab.Options{Guests: 1})
	misspelt := configFile(t, "\nuplink = [\"nic0\"]\n")
	run, pins := t.TempDir(), "/sys/fs/bpf/tapswitch-input"
	good := configFile(t, fmt.Sprintf("socket = %q\n", filepath.Join(run, "control.sock")))
	taken := filepath.Join(run, "taken")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	without := func(capability string) []string {
		return []string{"setpriv", "--bounding-set", "-" + capability + ",-sys_admin", "--inh-caps", "-" + capability + ",-sys_admin", daemonPath, "-config", good, "-pins", pins}
	}
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		words  []string
	}{
		{"unknown flag", []string{daemonPath, "-kep"}, 2, []string{"-kep", "-keep"}},
		{"argument", []string{daemonPath, "start"}, 2, []string{`unknown argument "start"`, "-h"}},
		{"unknown key", []string{daemonPath, "-config", misspelt, "-pins", pins}, 1, []string{misspelt + `:2: unknown key "uplink": did you mean "uplinks"?`}},
		{"no configuration", []string{daemonPath, "-config", "/nowhere/t.toml", "-pins", pins}, 1, []string{"/nowhere/t.toml", "no such file"}},
		{"no BPF file system", []string{daemonPath, "-config", good, "-pins", filepath.Join(run, "pins")}, 1, []string{"no BPF file system at " + run, "mount -t bpf", "-mount-bpffs"}},
		{"no directory for pins", []string{daemonPath, "-config", good, "-pins", "/sys/fs/bpf/no/where"}, 1, []string{"/sys/fs/bpf/no"}},
		{"no CAP_NET_ADMIN", without("net_admin"), 1, []string{"lacks CAP_NET_ADMIN", "root"}},
		{"no CAP_BPF", without("bpf"), 1, []string{"lacks CAP_BPF", "root"}},
		{"no CAP_PERFMON", without("perfmon"), 1, []string{"lacks CAP_PERFMON", "root"}},
		{"no root", []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", daemonPath, "-pins", pins}, 1, []string{"lacks CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON", "run it as root"}},
		{"a file for a socket", []string{daemonPath, "-config", configFile(t, fmt.Sprintf("socket = %q\n", taken)), "-pins", pins}, 1, []string{taken, "no socket"}},
		{"metrics nowhere", []string{daemonPath, "-config", configFile(t, fmt.Sprintf("socket = %q\nmetrics = \"198.51.100.1:1\"\n", filepath.Join(run, "control.sock"))), "-pins", pins}, 1, []string{"listening for metrics on 198.51.100.1:1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := bpffs(t)
			refuses(t, h.Host.Command(within(t, 10*time.Second), tt.args[0], tt.args[1:]...), tt.status, tt.words...)
			if d := cmp.Diff(before, bpffs(t)); d != "" {
				t.Errorf("the BPF file system changed:\n%s", d)
			}
			if on := h.programsOn(t); len(on) > 0 {
				t.Errorf("programs are on %v", on)
			}
			if _, err := os.Stat(filepath.Join(run, "control.sock")); err == nil {
				t.Error("a socket is left")
			}
		})
	}
}

// A daemon that runs is not disturbed by others that can't start because of it.
func TestInputBesideDaemon(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	s := stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 1000})
	elsewhere := configFile(t, fmt.Sprintf("socket = %q\n", filepath.Join(t.TempDir(), "control.sock")))
	same := configFile(t, fmt.Sprintf("socket = %q\n%s\n", h.Socket, labConfig))
	pins, attached := bpffs(t), h.attachments(t)

	refuses(t, daemonOn(t, h.Host, "-config", elsewhere, "-pins", h.Pins), 1,
		fmt.Sprintf("process %d drives the datapath at %s already", h.PID(), h.Pins), "stop it first")
	// A node without a bridge: there only the socket can be in the way.
	refuses(t, daemonOn(t, h.Wire, "-config", same, "-pins", h.Pins+"-other"), 1,
		h.Socket, "another daemon answers there", "stop it first")

	if d := cmp.Diff(pins, bpffs(t)); d != "" {
		t.Errorf("the BPF file system changed:\n%s", d)
	}
	if now := h.attachments(t); !cmp.Equal(now, attached, cmp.AllowUnexported(attachment{})) {
		t.Errorf("attachments are %v, were %v", now, attached)
	}
	st, err := h.api.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.PID != h.PID() {
		t.Errorf("process %d answers, want the first daemon, %d", st.PID, h.PID())
	}
	for _, name := range []string{lab.NIC, "vnet0"} {
		if p := h.port(t, name); p.State != control.StateFast {
			t.Errorf("%s is %s: %v", name, p.State, p.Held)
		}
	}
	h.awaitRedirects(t, lab.NIC, s)
	whole(t, "wire to guest", s)
}

// A datapath that was left to be adopted is left again by a daemon that can't
// start.
func TestInputBeforeAdoption(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: longLease, Args: []string{"-keep"}})
	s := stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 1000})
	h.awaitRedirects(t, lab.NIC, s)
	verdicts := h.verdicts(t, lab.NIC)
	h.stop(t)
	pins, attached := bpffs(t), h.attachments(t)
	wrong := configFile(t, fmt.Sprintf("socket = %q\nmetrics = \"198.51.100.1:1\"\n", h.Socket))
	refuses(t, daemonOn(t, h.Host, "-config", wrong, "-pins", h.Pins), 1, "listening for metrics on 198.51.100.1:1")
	if d := cmp.Diff(pins, bpffs(t)); d != "" {
		t.Errorf("the BPF file system changed:\n%s", d)
	}
	for name, a := range h.attachments(t) {
		if a.link != attached[name].link {
			t.Errorf("%s is link %d, was %d", name, a.link, attached[name].link)
		}
	}
	h.start(t, lab.DaemonOptions{})
	whole(t, "wire to guest", s)
	h.checkAllRedirected(t, lab.NIC, verdicts)
}

// What is pinned for one host's devices must not be taken for another's.
func TestInputPinsOfAnotherNamespace(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: longLease, Args: []string{"-keep"}})
	elsewhere := configFile(t, fmt.Sprintf("socket = %q\n", filepath.Join(t.TempDir(), "control.sock")))
	h.stop(t)
	pins, attached := bpffs(t), h.attachments(t)
	refuses(t, daemonOn(t, h.Wire, "-config", elsewhere, "-pins", h.Pins), 1, h.Pins, "network namespace", "-pins")
	if d := cmp.Diff(pins, bpffs(t)); d != "" {
		t.Errorf("the BPF file system changed:\n%s", d)
	}
	if now := h.attachments(t); !cmp.Equal(now, attached, cmp.AllowUnexported(attachment{})) {
		t.Errorf("attachments are %v, were %v", now, attached)
	}
	h.start(t, lab.DaemonOptions{})
	h.checkFast(t, h.Wire, h.Guests[0].Node, lab.NIC, "vnet0")
}

// A host that has no BPF file system yet gets one if it is asked for.
func TestInputMountsBPFFS(t *testing.T) {
	h := newLab(t, lab.Options{Guests: 1})
	dir := t.TempDir()
	// The mounts of the daemon are its own, and go with it.
	script := filepath.Join(dir, "tapswitchd")
	text := fmt.Sprintf("#!/bin/sh\nexec unshare -m sh -c 'umount /sys/fs/bpf && exec \"$0\" \"$@\"' %s \"$@\"\n", daemonPath)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	good := configFile(t, fmt.Sprintf("socket = %q\n", filepath.Join(dir, "control.sock")))
	refuses(t, h.Host.Command(within(t, 10*time.Second), script, "-config", good), 1,
		"no BPF file system at /sys/fs/bpf", "mount -t bpf", "-mount-bpffs")
	h.start(t, lab.DaemonOptions{Path: script, Args: []string{"-mount-bpffs"}})
	h.checkFast(t, h.Wire, h.Guests[0].Node, lab.NIC, "vnet0")
	mounted := filepath.Join("/proc", fmt.Sprint(h.PID()), "root", h.Pins)
	if _, err := os.Stat(mounted); err != nil {
		t.Errorf("the daemon's pins: %v", err)
	}
}

// Told to stop while it starts, a daemon stops.
func TestInputSignalAtStart(t *testing.T) {
	h := newLab(t, lab.Options{Guests: 1})
	good := configFile(t, fmt.Sprintf("socket = %q\n%s\n", filepath.Join(t.TempDir(), "control.sock"), labConfig))
	before := bpffs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, s := range []os.Signal{os.Interrupt, unix.SIGTERM} {
		cmd := h.Host.Command(ctx, daemonPath, "-config", good, "-pins", "/sys/fs/bpf/tapswitch-input")
		ready := make(chan struct{})
		cmd.Stderr = writerFunc(func(p []byte) (int, error) {
			if strings.Contains(string(p), "msg=ready") {
				close(ready)
			}
			return len(p), nil
		})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-ready
		cmd.Process.Signal(s)
		if err := cmd.Wait(); err != nil {
			t.Errorf("after %v: %v, want a clean end", s, err)
		}
		if d := cmp.Diff(before, bpffs(t)); d != "" {
			t.Errorf("the BPF file system changed:\n%s", d)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
