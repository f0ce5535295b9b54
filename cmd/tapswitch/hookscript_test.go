package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hookConsole runs hook commands on a directory like libvirt's, with the hooks that
// somebody else has there.
func hookConsole(t *testing.T) (c *console, dir string) {
	t.Helper()
	c = newConsole(t, nil)
	c.vars = nil // the default socket
	dir = filepath.Join(t.TempDir(), "hooks")
	if err := os.MkdirAll(filepath.Join(dir, "qemu.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"qemu", "qemu.d/10-backup"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c, dir
}

// tree gives the names of all files below dir, with what is not theirs to have.
func tree(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestHookInstall(t *testing.T) {
	c, dir := hookConsole(t)
	others := []string{"qemu", "qemu.d/10-backup"}
	all := []string{"network.d/tapswitch", "qemu", "qemu.d/10-backup", "qemu.d/tapswitch"}
	const reload = "libvirt looks at its hooks when it is reloaded: systemctl reload libvirtd, or virtqemud and virtnetworkd. Guests go on.\n"
	step := func(what, args, stdout string, files []string) {
		t.Helper()
		if code := c.run(t.Context(), append(strings.Fields(args), "--dir", dir, "--command", "/opt/it's/tapswitch-hook")...); code != exitFine {
			t.Errorf("%s: exit code %d: %s", what, code, &c.stderr)
		}
		if d := cmp.Diff(stdout, strings.ReplaceAll(c.stdout.String(), dir, "DIR")); d != "" {
			t.Errorf("%s: stdout (-want +got):\n%s", what, d)
		}
		if d := cmp.Diff(files, tree(t, dir)); d != "" {
			t.Errorf("%s: files (-want +got):\n%s", what, d)
		}
	}
	status := func(qemu, network string) string {
		tab := table{columns: []column{left("HOOK"), left("STATE"), left("FILE")}}
		tab.add("qemu", qemu, "DIR/qemu.d/tapswitch")
		tab.add("network", network, "DIR/network.d/tapswitch")
		var b strings.Builder
		if err := tab.print(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	step("before", "hook status", status("not installed", "not installed"), others)
	step("nothing to uninstall", "hook uninstall", "Nothing to do.\n", others)
	step("install", "hook install", "wrote DIR/qemu.d/tapswitch\nwrote DIR/network.d/tapswitch\n"+reload, all)
	step("installed", "hook status", status("installed", "installed"), all)
	step("again", "hook install", "Nothing to do.\n", all)

	script := filepath.Join(dir, "qemu.d", "tapswitch")
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "hook-qemu.sh", text)
	if err := os.Chmod(script, 0o644); err != nil {
		t.Fatal(err)
	}
	step("not executable", "hook status", status("differs", "installed"), all)
	step("renewed", "hook install", "wrote DIR/qemu.d/tapswitch\n"+reload, all)
	step("another socket", "hook status --socket /run/other", status("differs", "differs"), all)
	step("uninstall", "hook uninstall", "removed DIR/qemu.d/tapswitch\nremoved DIR/network.d/tapswitch\n"+reload, others)
}

func TestHookInstallRefuses(t *testing.T) {
	c, dir := hookConsole(t)
	foreign := filepath.Join(dir, "qemu.d", "tapswitch")
	if err := os.WriteFile(foreign, []byte("#!/bin/sh\necho mine\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	for _, verb := range []string{"install", "uninstall"} {
		if code := c.run(t.Context(), "hook", verb, "--dir", dir); code != exitFailed {
			t.Errorf("%s: exit code %d, want 1", verb, code)
		}
		if want := "tapswitch: " + foreign + " is not of tapswitch's making: look at it, and remove or rename it first\n"; c.stderr.String() != want {
			t.Errorf("%s: stderr %q, want %q", verb, &c.stderr, want)
		}
		if d := cmp.Diff(before, tree(t, dir)); d != "" {
			t.Errorf("%s: files (-before +after):\n%s", verb, d)
		}
	}
	c.run(t.Context(), "hook", "status", "--json", "--dir", dir)
	var got []hookScript
	if err := json.Unmarshal(c.stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []hookScript{{"qemu", foreign, hookForeign}, {"network", filepath.Join(dir, "network.d", "tapswitch"), hookAbsent}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}

	if code := c.run(t.Context(), "hook", "install", "--command", "/bin/true", "--dir", "/nonexistent/hooks"); code != exitFailed {
		t.Errorf("without libvirt: exit code %d, want 1", code)
	}
	if want := "tapswitch: installing hook: there is no /nonexistent: install libvirt first, or name its directory for hooks by --dir\n"; c.stderr.String() != want {
		t.Errorf("without libvirt: stderr %q, want %q", &c.stderr, want)
	}

	c, dir = hookConsole(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if code := c.run(t.Context(), "hook", "install", "--dir", dir); code != exitFailed {
		t.Errorf("without the scripts' program: exit code %d, want 1", code)
	}
	if want := "tapswitch: there is no " + filepath.Join(filepath.Dir(self), "tapswitch-hook") + " for the scripts to call: install it beside this command, or name it by --command\n"; c.stderr.String() != want {
		t.Errorf("without the scripts' program: stderr %q, want %q", &c.stderr, want)
	}
}

// The script hands its arguments on as they are, and ends well without the command.
func TestHookScript(t *testing.T) {
	dir := t.TempDir()
	command := filepath.Join(dir, "it's")
	script := filepath.Join(dir, "script")
	h := hooks{command: command, socket: "/run/a b"}
	if err := os.WriteFile(script, h.text("qemu"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func() (string, int) {
		cmd := exec.Command("/bin/sh", script, "--my vm", "start", "begin", "-")
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := run(); code != 0 || out != "" {
		t.Errorf("without the command: %q, exit code %d", out, code)
	}
	if err := os.WriteFile(command, []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, code := run()
	if want := "<--socket></run/a b><qemu><--my vm><start><begin><->"; out != want {
		t.Errorf("the script calls %s, want %s", out, want)
	}
	if code != 7 {
		t.Errorf("the script's exit code is %d, want the command's, 7", code)
	}
}
