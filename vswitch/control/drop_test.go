package control_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

func TestNewDrop(t *testing.T) {
	for _, tt := range []struct {
		errno  unix.Errno
		reason string
	}{
		{0, "ring full"},
		{unix.ENETDOWN, "device down"},
		{unix.EMSGSIZE, "too long"},
		{unix.ENXIO, "no queue"},
		{unix.EPIPE, "EPIPE"},
		{999, "errno 999"},
	} {
		d := control.NewDrop("vnet0", 7, int(tt.errno), 3)
		if d.Reason != tt.reason || d.Meaning == "" || d.Errno != int(tt.errno) || d.Port != "vnet0" || d.Ifindex != 7 || d.Frames != 3 {
			t.Errorf("errno %d gives %+v, want reason %q and a meaning", tt.errno, d, tt.reason)
		}
	}
}
