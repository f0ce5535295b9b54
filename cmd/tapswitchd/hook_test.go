package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A hook tells of a guest's filter before libvirt can be asked, here never: the port
// is held until the guest has stopped, as nobody says what the filter lets through.
func TestHookHoldsFilteredGuest(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{Config: labConfig + "\nlibvirt = \"/nonexistent/sock\"\n"})
	h.awaitFast(t, "vnet0", "vnet1")
	tell := func(operation, filter string) {
		t.Helper()
		xml := fmt.Sprintf(`<domain type='kvm' id='1'><name>web</name><uuid>3e3fce45-4f53-4fa7-bb32-11f34168b82b</uuid><devices>
<interface type='ethernet'><mac address='52:54:00:00:00:01'/><target dev='vnet0'/><model type='virtio'/><alias name='net0'/>%s</interface></devices></domain>`, filter)
		if err := h.api.Hook(t.Context(), control.Hook{Driver: "qemu", Object: "web", Operation: operation, SubOperation: "begin", Extra: "-", XML: []byte(xml)}); err != nil {
			t.Fatal(err)
		}
	}
	tell("start", "<filterref filter='no-mac-spoofing'/>")
	h.awaitPort(t, 5*time.Second, "vnet0", control.StateHeld, "libvirt's filter no-mac-spoofing decides over its frames")
	if g := h.port(t, "vnet0").Guest; g == nil || g.Domain != "web" || g.Alias != "net0" {
		t.Errorf("the port is that of %+v, want web's net0", g)
	}
	tell("start", "<filterref filter='shop'/>")
	h.awaitPort(t, 5*time.Second, "vnet0", control.StateHeld, "libvirt's filter shop decides over its frames")
	h.awaitFast(t, "vnet1")
	tell("release", "")
	h.await(t, 5*time.Second, "vnet0 is fast again", func() bool {
		p := h.port(t, "vnet0")
		return p.State == control.StateFast && p.Guest == nil && !held(p, vswitch.HoldFilter)
	})
	if err := h.api.Hook(t.Context(), control.Hook{Driver: "qemu", Object: "web", Operation: "start", XML: []byte("<domain>")}); err == nil {
		t.Error("malformed XML is taken")
	}
	h.awaitFast(t, "vnet0", "vnet1")
}

func held(p control.Port, code vswitch.HoldCode) bool {
	for _, r := range p.Held {
		if r.Code == code {
			return true
		}
	}
	return false
}
