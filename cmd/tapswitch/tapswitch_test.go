package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// A console runs commands against a daemon's API on a real socket.
type console struct {
	*env
	stdout, stderr bytes.Buffer
	vars           map[string]string
}

// newConsole serves src for the test; without one no daemon runs.
func newConsole(t *testing.T, src control.Switch) *console {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "t.sock")
	if src != nil {
		l, err := control.Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- control.Serve(ctx, l, control.NewServer(src, nil)) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	c := &console{vars: map[string]string{"TAPSWITCH_SOCKET": socket}}
	c.env = &env{
		stdin:  strings.NewReader(""),
		stdout: &c.stdout,
		stderr: &c.stderr,
		getenv: func(name string) string { return c.vars[name] },
		now:    func() time.Time { return controltest.Now },
		after:  func(time.Duration) <-chan time.Time { return nil },
		dial:   control.Dial,
	}
	return c
}

func (c *console) run(ctx context.Context, args ...string) int {
	c.stdout.Reset()
	c.stderr.Reset()
	c.running = false
	return run(ctx, c.env, args)
}

// golden compares got with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got; 'go test -update' writes it anew):\n%s", path, d)
	}
}

func TestOutput(t *testing.T) {
	sample := controltest.Sample
	empty := func() *controltest.Source {
		s := &controltest.Source{StatusValue: sample().StatusValue}
		s.StatusValue.Bridges = nil
		s.StatusValue.Datapath.Adopted = false
		s.StatusValue.Totals = control.Totals{}
		s.StatusValue.Libvirt = control.Libvirt{}
		s.StatusValue.Warnings = nil
		return s
	}
	expired := func() *controltest.Source {
		s := sample()
		s.StatusValue.Renewed = controltest.Now.Add(-7 * time.Second)
		s.StatusValue.Libvirt.Connected, s.StatusValue.Libvirt.Error = false, "dial unix /run/libvirt/libvirt-sock: connect: connection refused"
		s.StatusValue.FDB = control.FDBUse{Entries: 32768, Capacity: 32768, Full: 17, Refused: 960000}
		return s
	}
	hostile := func() *controltest.Source {
		s := sample()
		s.PortsValue[0].Name = "a\x1b[31mb"
		s.PortsValue[0].Held[0].Text = "two\nlines"
		return s
	}
	paused := func() *controltest.Source {
		s := sample()
		p := &s.PortsValue[3]
		reason := vswitch.Hold(vswitch.HoldPaused, "paused by hand until 12:00:42; 'tapswitch resume' ends it sooner")
		reason.Until = controltest.Now.Add(42 * time.Second)
		p.State, p.Held = control.StateHeld, []vswitch.HoldReason{reason}
		s.PortsValue = s.PortsValue[3:4]
		return s
	}
	for _, tt := range []struct {
		golden string
		src    func() *controltest.Source
		args   string
	}{
		{"status.txt", sample, "status"},
		{"status.json", sample, "status --json"},
		{"status-empty.txt", empty, "status"},
		{"status-expired.txt", expired, "status"},
		{"ports.txt", sample, "ports"},
		{"ports.json", sample, "ports --json"},
		{"ports-empty.txt", empty, "ports"},
		{"ports-empty.json", empty, "ports --json"},
		{"ports-hostile.txt", hostile, "ports"},
		{"fdb.txt", sample, "fdb"},
		{"fdb.json", sample, "fdb --json"},
		{"fdb-mac.txt", sample, "fdb --mac 52-54-00-00-00-99"},
		{"fdb-port.txt", sample, "fdb --bridge br0 --port host"},
		{"fdb-empty.txt", sample, "fdb --bridge br-lab"},
		{"drops.txt", sample, "drops"},
		{"drops.json", sample, "drops --json"},
		{"drops-empty.txt", empty, "drops"},
		{"stats.txt", sample, "stats"},
		{"stats-all.txt", sample, "stats --all"},
		{"stats.json", sample, "stats --json"},
		{"stats-empty.txt", empty, "stats"},
		{"pause.txt", sample, "pause vnet0"},
		{"pause.json", sample, "pause br0 --for 5m --json"},
		{"pause-ports.txt", paused, "ports"},
		{"pause-ports.json", paused, "ports --json"},
		{"resume.txt", sample, "resume br0"},
		{"resume-none.txt", sample, "resume vnet0"},
		{"resume-still.txt", sample, "resume vnet1"},
		{"help-pause.txt", sample, "pause --help"},
		{"help.txt", sample, "--help"},
		{"help.txt", sample, ""},
		{"help.txt", sample, "help"},
		{"help-stats.txt", sample, "stats --help"},
		{"help-stats.txt", sample, "help stats"},
		{"version.txt", sample, "version"},
		{"version.txt", sample, "--version"},
	} {
		t.Run(tt.golden+"/"+tt.args, func(t *testing.T) {
			c := newConsole(t, tt.src())
			// The default of --socket is the test's; what help shows must not be.
			if strings.HasPrefix(tt.golden, "help") {
				c.vars = nil
				only(t, "status", "ports", "fdb", "drops", "stats", "pause", "resume", "version", "gen-docs")
			}
			if code := c.run(t.Context(), strings.Fields(tt.args)...); code != exitFine {
				t.Errorf("exit code %d, want 0; stderr: %s", code, &c.stderr)
			}
			if c.stderr.Len() > 0 {
				t.Errorf("stderr: %s", &c.stderr)
			}
			if strings.HasSuffix(tt.golden, ".json") && !json.Valid(c.stdout.Bytes()) {
				t.Errorf("not JSON: %s", &c.stdout)
			}
			golden(t, tt.golden, c.stdout.Bytes())
		})
	}
}

// only leaves only the named commands for the test, so that a new noun does not
// change what is expected of others.
func only(t *testing.T, names ...string) {
	t.Helper()
	all := commands
	t.Cleanup(func() { commands = all })
	commands = nil
	e := newConsole(t, nil).env
	for _, make := range all {
		for _, name := range names {
			if make(e).Name() == name {
				commands = append(commands, make)
			}
		}
	}
}

func TestExitCodes(t *testing.T) {
	only(t, "status", "ports", "fdb", "drops", "stats", "pause", "resume", "version", "gen-docs")
	group := func(*env) *cobra.Command {
		g := &cobra.Command{Use: "group", Short: "a command of commands"}
		one := &cobra.Command{Use: "one", Args: cobra.ExactArgs(1), RunE: func(*cobra.Command, []string) error { return errors.New("broken") }}
		one.Flags().Int("count", 0, "")
		g.AddCommand(one)
		return g
	}
	commands = append(commands, group)
	for _, tt := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"prots", 2, "tapswitch: unknown command \"prots\" for tapswitch: did you mean \"ports\"?\nRun 'tapswitch --help' for how to use it.\n"},
		{"frobnicate", 2, "tapswitch: unknown command \"frobnicate\" for tapswitch: want one of completion, drops, fdb, group, pause, ports, resume, stats, status, version\nRun 'tapswitch --help' for how to use it.\n"},
		{"help prots", 2, "tapswitch: unknown command \"prots\" for tapswitch: did you mean \"ports\"?\nRun 'tapswitch help --help' for how to use it.\n"},
		{"completion zhs", 2, "tapswitch: unknown command \"zhs\" for \"tapswitch completion\"\nRun 'tapswitch completion --help' for how to use it.\n"},
		{"ports br0", 2, "tapswitch: tapswitch ports takes no arguments, have \"br0\"\nRun 'tapswitch ports --help' for how to use it.\n"},
		{"ports --jsn", 2, "tapswitch: unknown flag --jsn for tapswitch ports: did you mean --json?\nRun 'tapswitch ports --help' for how to use it.\n"},
		{"ports -j", 2, "tapswitch: unknown flag -j for tapswitch ports\nRun 'tapswitch ports --help' for how to use it.\n"},
		{"--sockt /x status", 2, "tapswitch: unknown flag --sockt for tapswitch status: did you mean --socket?\nRun 'tapswitch status --help' for how to use it.\n"},
		{"fdb --mac", 2, "tapswitch: flag needs an argument: --mac\nRun 'tapswitch fdb --help' for how to use it.\n"},
		{"fdb --mac 52:54", 2, "tapswitch: invalid argument \"52:54\" for \"--mac\" flag: parsing MAC address: address 52:54: invalid MAC address\nRun 'tapswitch fdb --help' for how to use it.\n"},
		{"stats --watch 1", 2, "tapswitch: invalid argument \"1\" for \"--watch\" flag: time: missing unit in duration \"1\"\nRun 'tapswitch stats --help' for how to use it.\n"},
		{"stats --watch 99ms", 2, "tapswitch: --watch is 99ms: want 100ms or more\nRun 'tapswitch stats --help' for how to use it.\n"},
		{"pause", 2, "tapswitch: tapswitch pause takes one port or bridge, have 0\nRun 'tapswitch pause --help' for how to use it.\n"},
		{"pause vnet0 --for 0.5s", 2, "tapswitch: --for is 500ms: want 1s to 24h0m0s\nRun 'tapswitch pause --help' for how to use it.\n"},
		{"resume vnet9", 1, "tapswitch: no port or bridge vnet9 in the switch, which has br-lab, br0, vnet7, nic0, sensor, vnet0, vnet1: file does not exist\n"},
		{"gen-docs", 2, "tapswitch: at least one of the flags in the group [man completions] is required\nRun 'tapswitch gen-docs --help' for how to use it.\n"},
		{"group", 0, ""},
		{"group on", 2, "tapswitch: unknown command \"on\" for tapswitch group: did you mean \"one\"?\nRun 'tapswitch group --help' for how to use it.\n"},
		{"group one", 2, "tapswitch: accepts 1 arg(s), received 0\nRun 'tapswitch group one --help' for how to use it.\n"},
		{"group one x", 1, "tapswitch: broken\n"},
		{"fdb --bridge br9", 1, "tapswitch: no bridge br9 in the switch, which has br0, br-lab: file does not exist\n"},
		{"fdb --port vnet9", 1, "tapswitch: no port vnet9 in the switch, which has vnet7, nic0, sensor, vnet0, vnet1: file does not exist\n"},
		{"status --socket /nonexistent/t.sock", 3, "tapswitch: tapswitchd is not running (no socket at /nonexistent/t.sock): systemctl start tapswitchd\n"},
		{"stats --watch 1s --socket /nonexistent/t.sock", 3, "tapswitch: tapswitchd is not running (no socket at /nonexistent/t.sock): systemctl start tapswitchd\n"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			c := newConsole(t, controltest.Sample())
			if code := c.run(t.Context(), strings.Fields(tt.args)...); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if d := cmp.Diff(tt.stderr, c.stderr.String()); d != "" {
				t.Errorf("stderr (-want +got):\n%s", d)
			}
			if tt.code != 0 && c.stdout.Len() > 0 {
				t.Errorf("stdout: %s", &c.stdout)
			}
		})
	}
}

func TestDaemonFails(t *testing.T) {
	for _, noun := range []string{"status", "ports", "fdb", "drops", "stats"} {
		c := newConsole(t, &controltest.Source{Err: errors.New("reading map verdicts: out of order")})
		if code := c.run(t.Context(), noun); code != exitFailed {
			t.Errorf("%s: exit code %d, want 1", noun, code)
		}
		if got, want := c.stderr.String(), "tapswitch: reading map verdicts: out of order\n"; got != want {
			t.Errorf("%s: stderr %q, want %q", noun, got, want)
		}
	}
}

func TestNoDaemon(t *testing.T) {
	for _, noun := range []string{"status", "ports", "fdb", "drops", "stats"} {
		c := newConsole(t, nil)
		if code := c.run(t.Context(), noun, "--json"); code != exitUnreachable {
			t.Errorf("%s: exit code %d, want 3", noun, code)
		}
	}
}

// What the exit codes are must stand wherever a person looks for it.
func TestExitCodesDocumented(t *testing.T) {
	for _, args := range []string{"--help", "status --help", "fdb --help", "stats --help"} {
		c := newConsole(t, nil)
		c.run(t.Context(), strings.Fields(args)...)
		if !strings.Contains(c.stdout.String(), exitCodes) {
			t.Errorf("%s does not tell the exit codes", args)
		}
	}
}
