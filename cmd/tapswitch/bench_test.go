package main

import (
	"strings"
	"testing"
)

// What the benchmark does is tested in tools/uplink; here, that wrong usage does
// not even make namespaces.
func TestBenchUsage(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"bench uplink --rounds -1", "--rounds -1: want 1 or more"},
		{"bench uplink --rounds many", "invalid argument"},
		{"bench uplink --entries -5", "--entries -5: want 0 to 65536"},
		{"bench uplink --entries 70000", "--entries 70000: want 0 to 65536"},
		{"bench uplink --ports 5000", "--ports 5000: want 0 to 1000"},
		{"bench uplink now", "takes no arguments"},
		{"bench downlink", `unknown command "downlink" for tapswitch bench`},
	} {
		c := newConsole(t, nil)
		if code := c.run(t.Context(), strings.Fields(tt.args)...); code != exitUsage {
			t.Errorf("%s: exit code %d, want %d", tt.args, code, exitUsage)
		}
		if !strings.Contains(c.stderr.String(), tt.want) {
			t.Errorf("%s: stderr %q, want %q in it", tt.args, &c.stderr, tt.want)
		}
	}
}

func TestBenchHelp(t *testing.T) {
	c := newConsole(t, nil)
	if code := c.run(t.Context(), "bench", "uplink", "--help"); code != exitFine {
		t.Errorf("exit code %d: %s", code, &c.stderr)
	}
	for _, want := range []string{"--rounds", "--entries", "--ports", "--quick", "--json", "It needs root"} {
		if !strings.Contains(c.stdout.String(), want) {
			t.Errorf("no %q in the help", want)
		}
	}
}
