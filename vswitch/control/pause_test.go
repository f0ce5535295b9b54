package control_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

func TestPauseRoundTrip(t *testing.T) {
	c := serve(t, controltest.Sample())
	p, err := c.Pause(t.Context(), "vnet0", 90*time.Second)
	want := control.Pause{Name: "vnet0", Ifindex: 104, Ports: []string{"vnet0"}, Until: controltest.Now.Add(90 * time.Second)}
	if d := cmp.Diff(want, p); d != "" || err != nil {
		t.Errorf("pause: %v (-want +got):\n%s", err, d)
	}
	p, err = c.Resume(t.Context(), "br0")
	want = control.Pause{Name: "br0", Ifindex: 104, Ports: []string{"br0"}, Ended: true}
	if d := cmp.Diff(want, p); d != "" || err != nil {
		t.Errorf("resume: %v (-want +got):\n%s", err, d)
	}
	if _, err := c.Resume(t.Context(), "br9"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("resume of a bridge that is not there: %v, want not-exist", err)
	}
}
