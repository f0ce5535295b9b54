package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

// The shell completes names of bridges and ports by what the daemon knows.
func TestCompletion(t *testing.T) {
	for flag, want := range map[string][]string{
		"--bridge": {"br-lab", "br0"},
		"--port":   {"host", "nic0", "sensor", "vnet0", "vnet1", "vnet7"},
	} {
		c := newConsole(t, controltest.Sample())
		if code := c.run(t.Context(), "__complete", "fdb", flag, ""); code != exitFine {
			t.Errorf("%s: exit code %d: %s", flag, code, &c.stderr)
		}
		lines := strings.Fields(c.stdout.String())
		if d := cmp.Diff(append(want, ":4"), lines); d != "" {
			t.Errorf("%s (-want +got):\n%s", flag, d)
		}
	}
}
