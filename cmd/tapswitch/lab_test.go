package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/demo"
	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// labPrograms builds the command and the daemon side by side, as make build does,
// and gives the command's path.
func labPrograms(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("this test needs root")
		}
		t.Skip("SKIPPED: this test needs root")
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", ".", "../tapswitchd").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "tapswitch")
}

// runLab runs the command, and gives its exit code.
func runLab(t *testing.T, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var outs, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &outs, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), outs.String(), errs.String()
}

func TestLab(t *testing.T) {
	path := labPrograms(t)
	t.Run("quick", func(t *testing.T) {
		code, stdout, stderr := runLab(t, exec.CommandContext(t.Context(), path, "lab", "--quick", "--json"))
		if code != exitFine {
			t.Fatalf("exit code %d\n%s\n%s", code, stdout, stderr)
		}
		if !strings.Contains(stderr, "s] starting tapswitchd\n") {
			t.Errorf("no progress on stderr: %q", stderr)
		}
		golden(t, "lab-keys.txt", []byte(strings.Join(keysOf(t, stdout), "\n")+"\n"))
		var r demo.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		checkVerdicts(t, r.Verdicts)
		// Which verdicts are rare, how fast TCP is and whether it overran a queue, is
		// chance.
		r.Verdicts = []demo.Verdict{{Port: "nic0", Verdict: vswitch.Redirected, Frames: 1, Meaning: "sent"}}
		for i := range r.Transfers {
			r.Transfers[i].Tapswitch = r.Transfers[i].BridgeXDP
		}
		for i := range r.Losses {
			r.Losses[i].Reasons = nil
		}
		c := newConsole(t, nil)
		if err := c.showLab(&r, nil, false); err != nil {
			t.Error(err)
		}
		golden(t, "lab-quick.txt", masked(c.stdout.Bytes()))
	})
	t.Run("libvirt", func(t *testing.T) {
		code, stdout, stderr := runLab(t, exec.CommandContext(t.Context(), path, "lab", "--libvirt", "--json"))
		if code != exitFine {
			t.Fatalf("exit code %d\n%s\n%s", code, stdout, stderr)
		}
		var steps []demo.LibvirtStep
		if err := json.Unmarshal([]byte(stdout), &steps); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range steps {
			line := s.What + ":"
			for _, p := range s.Ports {
				line += " " + p.State
				if g := p.Guest; g != nil {
					line += fmt.Sprintf(" (%s %s %v)", g.Domain, g.Alias, g.Paused)
				}
			}
			got = append(got, line)
		}
		want := []string{
			"two guests start: fast fast (web net0 false) fast (db net0 false)",
			"web gets a second NIC: fast fast (web net0 false) fast (db net0 false) fast (web net1 false)",
			"web is paused: fast fast (web net0 true) fast (db net0 false) fast (web net1 true)",
			"web goes on: fast fast (web net0 false) fast (db net0 false) fast (web net1 false)",
			"web is destroyed: fast fast (db net0 false)",
			"db is destroyed: fast",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("ports by step (-want +got):\n%s", d)
		}
	})
	// The run gets as far as the start of the daemon, which ends at once.
	t.Run("broken daemon", func(t *testing.T) {
		broken := filepath.Join(t.TempDir(), "tapswitchd")
		script := "#!/bin/sh\ncase $1 in -version) echo tapswitchd broken; exit;; esac\necho out of order >&2\nexit 1\n"
		if err := os.WriteFile(broken, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := runLab(t, exec.CommandContext(t.Context(), path, "lab", "--quick", "--json", "--daemon", broken))
		if code != exitFailed {
			t.Errorf("exit code %d, want %d", code, exitFailed)
		}
		if !strings.Contains(stderr, "tapswitch: starting the daemon "+broken) || !strings.Contains(stderr, "out of order") {
			t.Errorf("stderr does not tell what is wrong with the daemon: %s", stderr)
		}
		var r demo.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		if r.OK || !strings.Contains(r.Error, "out of order") {
			t.Errorf("the report is %v with error %q", r.OK, r.Error)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), path, "lab", "--quick")
		progress, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		cmd.Stdout = &stdout
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The line tells that a run has begun, so the signal finds it under way.
		line := make([]byte, 1<<10)
		if _, err := progress.Read(line); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		if _, err := stderr.ReadFrom(progress); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailed {
			t.Errorf("%v, want exit code %d", err, exitFailed)
		}
		if !strings.HasSuffix(stderr.String(), "tapswitch: interrupted\n") || stdout.Len() > 0 {
			t.Errorf("stderr %q, stdout %q", &stderr, &stdout)
		}
	})
}

// checkVerdicts looks for what a run can't do without.
func checkVerdicts(t *testing.T, verdicts []demo.Verdict) {
	t.Helper()
	frames := map[string]map[vswitch.Verdict]uint64{"nic0": {}, "vnet0": {}, "vnet1": {}}
	for _, v := range verdicts {
		frames[v.Port][v.Verdict] = v.Frames
		if v.Frames == 0 || v.Meaning == "" {
			t.Errorf("a row %+v", v)
		}
	}
	for port, by := range frames {
		if by[vswitch.Redirected] == 0 {
			t.Errorf("no frame from %s was redirected", port)
		}
	}
	for _, v := range []vswitch.Verdict{vswitch.PassExpired, vswitch.PassHost} {
		if frames["nic0"][v] == 0 {
			t.Errorf("no frame from nic0 met %s", v)
		}
	}
}

// keysOf gives the paths of all keys in a JSON text.
func keysOf(t *testing.T, text string) []string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var keys []string
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, inner := range v {
				keys = append(keys, path+key)
				walk(path+key+".", inner)
			}
		case []any:
			for _, inner := range v {
				walk(path, inner)
			}
		}
	}
	walk("", value)
	slices.Sort(keys)
	return slices.Compact(keys)
}

var (
	measured = regexp.MustCompile(`\b[0-9]+(\.[0-9]+)?\b`)
	kernel   = regexp.MustCompile(`(?m)^Linux .*$`)
	gaps     = regexp.MustCompile(` +`)
)

// masked leaves of a text what is the same in every run.
func masked(text []byte) []byte {
	text = kernel.ReplaceAll(text, []byte("Linux …"))
	text = measured.ReplaceAll(text, []byte("N"))
	return gaps.ReplaceAll(text, []byte(" "))
}

// labReport is what a run with a failure might give.
func labReport() *demo.Report {
	ok := func(name string) demo.Check { return demo.Check{Name: name, OK: true, Seen: "as it should be"} }
	return &demo.Report{
		Kernel: "6.12", CPUs: 2, Daemon: "v1.2.3", Elapsed: 61.2,
		Failures: []string{"daemon killed, started again"},
		Ports: []demo.Port{
			{Check: ok("nic0 is fast"), Port: "nic0", Role: vswitch.RoleUplink, State: control.StateFast, Hook: "xdp native + tcx"},
			{Check: ok("vnet0 is fast"), Port: "vnet0", Role: vswitch.RoleGuest, State: control.StateFast, Hook: "tcx"},
		},
		Reach: []demo.Reach{
			{Check: ok("wire reaches guest0"), From: "wire", To: "guest0", Sent: 20, IPv4: true, IPv6: true, Fast: 80},
			{Check: ok("host reaches guest0"), From: "host", To: "guest0", Sent: 20, IPv4: true, IPv6: true, Bridge: 40},
		},
		Transfers: []demo.Transfer{{
			Check: ok("guest0 fetches from wire over ipv4"), Into: "guest0", From: "wire", Family: "ipv4", Bytes: 50e6,
			Bridge: demo.Rate{MbitPerSecond: 2345.6}, BridgeXDP: demo.Rate{MbitPerSecond: 1234.5}, Tapswitch: demo.Rate{MbitPerSecond: 765.4, Lost: 12},
		}},
		Verdicts: []demo.Verdict{
			{Port: "nic0", Verdict: vswitch.Redirected, Frames: 123456, Meaning: vswitch.Redirected.Meaning()},
			{Port: "nic0", Verdict: vswitch.PassExpired, Frames: 5000, Meaning: vswitch.PassExpired.Meaning()},
		},
		Accounts: []demo.Account{{Check: ok("each frame from nic0 met one verdict"), Port: "nic0", Received: 128456, Decided: 128456}},
		Losses: []demo.Loss{
			{Check: ok("nothing lost on the way to vnet0"), Port: "vnet0", Reasons: []string{"ring full"}, Frames: 12, InTransfers: 12},
			{Check: ok("nothing lost on the way to nic0"), Port: "nic0"},
		},
		Handovers: []demo.Handover{
			{
				Check: demo.Check{Name: "daemon killed, started again", Seen: "of 10000 datagrams 1 were lost, 0 came twice, 0 came damaged, 0 could not be sent"},
				What:  "killed, started again", Sent: 10000, Lost: 1, Want: "redirected", AwayFrames: 4500, Adopted: true,
			},
			{Check: ok("daemon stopped cleanly"), What: "stopped cleanly", Sent: 6000},
		},
		Remains: []demo.Remain{{Check: ok("no pins left behind"), What: "pins", Before: 13}},
		Cost: &demo.Cost{
			FrameBytes: 64, BrNetfilter: true, Rounds: 7,
			Ways: []demo.Way{
				{Check: ok("floor"), Way: "floor", Meaning: "dropped at once", Gross: 200.4},
				{Check: ok("tapswitch"), Way: "tapswitch", Meaning: "the fast path", Gross: 490.6, Net: 290.2, Ratio: 1},
				{Check: ok("bridge"), Way: "bridge", Meaning: "the bridge", Gross: 1300.1, Net: 1099.7, Ratio: 3.79, Loss: 0.0001},
			},
			Goals: []bench.Finding{{Goal: bench.Goal{Way: "bridge", Base: "tapswitch", AtLeast: 3}, Ratio: bench.Spread{Median: 3.79, Min: 3.5, Max: 4}, Met: true}},
		},
	}
}

// A check that fails is named, and makes the exit code 1.
func TestLabFailure(t *testing.T) {
	c := newConsole(t, nil)
	err := c.showLab(labReport(), nil, false)
	if exitCode(err) != exitFailed || err.Error() != "1 of 14 checks failed: daemon killed, started again" {
		t.Errorf("exit code %d for %v", exitCode(err), err)
	}
	golden(t, "lab-failed.txt", c.stdout.Bytes())
}

// What ended a run early is told beside what failed before.
func TestLabEndsEarly(t *testing.T) {
	for _, tt := range []struct {
		failures []string
		err      error
		want     string
		printed  bool
	}{
		{nil, errors.New("starting the daemon: no"), "starting the daemon: no", true},
		{[]string{"a"}, errors.New("b"), "1 of 0 checks failed: a\nb", true},
		{[]string{"a"}, context.Canceled, "interrupted", false},
	} {
		c := newConsole(t, nil)
		err := c.showLab(&demo.Report{Failures: tt.failures, Error: tt.err.Error()}, tt.err, false)
		if exitCode(err) != exitFailed || err.Error() != tt.want {
			t.Errorf("exit code %d for %v, want %s", exitCode(err), err, tt.want)
		}
		if printed := c.stdout.Len() > 0; printed != tt.printed {
			t.Errorf("after %v stdout is %q", tt.err, &c.stdout)
		}
	}
}

func TestLabUsage(t *testing.T) {
	other, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"lab now", exitUsage, "takes no arguments"},
		{"lab --quik", exitUsage, "did you mean --quick?"},
		{"lab --daemon /nonexistent/tapswitchd", exitFailed, "no such file or directory: build it by 'make build', or name one by --daemon"},
		{"lab --daemon " + other, exitFailed, other + " is another program: build it by 'make build'"},
		// The test's program has no daemon beside it.
		{"lab", exitFailed, "build it by 'make build'"},
	} {
		c := newConsole(t, nil)
		if code := c.run(t.Context(), strings.Fields(tt.args)...); code != tt.code {
			t.Errorf("%s: exit code %d, want %d", tt.args, code, tt.code)
		}
		if !strings.Contains(c.stderr.String(), tt.want) {
			t.Errorf("%s: stderr %q, want %q in it", tt.args, &c.stderr, tt.want)
		}
	}
}

func TestLabHelp(t *testing.T) {
	c := newConsole(t, nil)
	if code := c.run(t.Context(), "lab", "--help"); code != exitFine {
		t.Errorf("exit code %d: %s", code, &c.stderr)
	}
	for _, want := range []string{"--quick", "--daemon", "--json", "It needs root", "WITH XDP", "MEANWHILE FRAMES", exitCodes} {
		if !strings.Contains(c.stdout.String(), want) {
			t.Errorf("no %q in the help", want)
		}
	}
}
