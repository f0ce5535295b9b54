package control_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

func TestHook(t *testing.T) {
	src := &controltest.Source{Hooks: make(chan control.Hook, 1)}
	c := serve(t, src)
	for _, want := range []control.Hook{
		{Driver: "qemu", Object: "web & proxy", Operation: "start", SubOperation: "begin", Extra: "-", XML: []byte("<domain/>\n")},
		{Driver: "network", Object: "--help", Operation: "port-created", XML: []byte(strings.Repeat("x", 1<<20))},
	} {
		if err := c.Hook(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, <-src.Hooks); d != "" {
			t.Errorf("hook (-sent +taken):\n%s", d)
		}
	}
	err := c.Hook(t.Context(), control.Hook{XML: make([]byte, 1<<20+1)})
	if want := "reading a hook's XML: http: request body too large"; err == nil || err.Error() != want {
		t.Errorf("a long hook: %v, want %s", err, want)
	}
}
