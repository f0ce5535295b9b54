package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGenDocs(t *testing.T) {
	dir := t.TempDir()
	c := newConsole(t, nil)
	if code := c.run(t.Context(), "gen-docs", "--man", filepath.Join(dir, "man8"), "--completions", dir); code != exitFine {
		t.Fatalf("exit code %d: %s", code, &c.stderr)
	}
	for file, want := range map[string]string{
		"man8/tapswitch.8":                         "3  the daemon can't be reached",
		"man8/tapswitch-fdb.8":                     "3  the daemon can't be reached",
		"man8/tapswitch-ports.8":                   "held",
		"bash-completion/completions/tapswitch":    "bash completion",
		"zsh/site-functions/_tapswitch":            "#compdef tapswitch",
		"fish/vendor_completions.d/tapswitch.fish": "fish completion",
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: error %v, want %q in it", file, err, want)
		}
	}
	for _, name := range []string{"gen-docs", "completion", "completion-bash"} {
		if _, err := os.Stat(filepath.Join(dir, "man8", "tapswitch-"+name+".8")); err == nil {
			t.Errorf("%s has a man page", name)
		}
	}
}

func TestGenDocsFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := newConsole(t, nil)
	if code := c.run(t.Context(), "gen-docs", "--man", file, "--completions", file); code != exitFailed {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, want := range []string{"writing man pages: ", "writing completions: "} {
		if !strings.Contains(c.stderr.String(), want) {
			t.Errorf("stderr %q, want %q in it", &c.stderr, want)
		}
	}
}
