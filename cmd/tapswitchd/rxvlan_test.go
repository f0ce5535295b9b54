package main

import (
	"strings"
	"testing"

	"github.com/safchain/ethtool"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// TestD6RxVLANOff: with rxvlan_off the daemon switches off what hides tags, says so, and
// puts it back at a clean stop; also when it comes back while the daemon runs, and when
// another daemon has switched it off. Without it the uplink goes by tc, and says what to do.
func TestD6RxVLANOff(t *testing.T) {
	h := newLab(t, lab.Options{Guests: 1})
	g := h.Guests[0]
	hides := func() (on bool) {
		t.Helper()
		err := h.Host.Do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer e.Close()
			features, err := e.Features(lab.NIC)
			on = features["rx-vlan-hw-parse"]
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return on
	}
	hide := func() {
		t.Helper()
		if err := h.Host.SetOffload(lab.NIC, lab.RxVLAN, true); err != nil {
			t.Fatal(err)
		}
	}
	native := func(what string) {
		t.Helper()
		h.await(t, noticed, "nic0 has XDP", func() bool {
			p := h.port(t, lab.NIC)
			return !hides() && p.Hook == bothHooks() && p.State == control.StateFast && len(p.Held) == 0
		})
		h.checkFast(t, h.Wire, g.Node, lab.NIC, g.Port)
		if t.Failed() {
			t.Fatal(what)
		}
	}
	allowed := lab.DaemonOptions{Config: labConfig + "\nrxvlan_off = true"}
	const said = "switched off what hides VLAN tags from XDP"
	hide()
	h.start(t, lab.DaemonOptions{})
	p := h.port(t, lab.NIC)
	if len(p.Held) != 1 || p.Held[0].Code != vswitch.HoldHiddenTags || p.Hook != tcHook() ||
		!strings.Contains(p.Held[0].Text, "ethtool -K nic0 rxvlan off") || !strings.Contains(p.Held[0].Text, "rxvlan_off in the configuration") || !hides() {
		t.Errorf("without rxvlan_off nic0 has %q because %v, and hides tags: %v", p.Hook, p.Held, hides())
	}
	h.stop(t)
	h.start(t, lab.DaemonOptions{Config: labConfig + "\n" + `rxvlan_off = ["nic1"]`})
	if p := h.port(t, lab.NIC); p.Hook != tcHook() || !hides() {
		t.Errorf("with another's name nic0 has %q, and hides tags: %v", p.Hook, hides())
	}
	h.stop(t)
	h.start(t, allowed)
	native("at the start")
	hide()
	native("after it came back")
	if n := strings.Count(h.Log(), said); n != 2 {
		t.Errorf("the log says it %d times, want twice", n)
	}
	if err := h.Kill(); err != nil {
		t.Fatal(err)
	}
	h.start(t, allowed)
	native("after a kill")
	h.stop(t)
	if !hides() {
		t.Error("a clean stop has not put it back")
	}
}
