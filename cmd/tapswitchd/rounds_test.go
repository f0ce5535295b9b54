package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/bridge"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A look is due for what is new, and for nothing else.
func TestLookIsDue(t *testing.T) {
	m := &bridge.Mirror{
		Bridges: map[int]vswitch.Bridge{1: {Name: "br0"}, 2: {Name: "br1"}},
		Ports:   map[int]vswitch.Port{3: {Name: "eth0", Bridge: 1, Role: vswitch.RoleUplink}, 4: {Name: "vnet0", Bridge: 1}},
	}
	r := newRounds()
	change := func(what string, due bool, f func(p *vswitch.Port)) {
		t.Helper()
		p := m.Ports[3]
		f(&p)
		m.Ports[3] = p
		if got := r.due(m); got != due {
			t.Errorf("%s: a look is due: %v", what, got)
		}
		r.done(m)
		if r.due(m) {
			t.Errorf("%s: one is due after it", what)
		}
	}
	change("the first", true, func(*vswitch.Port) {})
	change("VLANs, flags, states", false, func(p *vswitch.Port) {
		p.VLANs, p.TakenVLANs, p.STP, p.MTU, p.Up = &vswitch.VLANSet{}, &vswitch.VLANSet{}, vswitch.STPForwarding, 9000, true
		p.Flags.Isolated = true
	})
	change("bridge", true, func(p *vswitch.Port) { p.Bridge = 2 })
	change("name", true, func(p *vswitch.Port) { p.Name = "eth1" })
	change("role", true, func(p *vswitch.Port) { p.Role = vswitch.RoleGuest })
	change("what is below", true, func(p *vswitch.Port) { p.Carrier.Members[0] = 7 })
	change("VLANs of a bridge", false, func(*vswitch.Port) { m.Bridges[1] = vswitch.Bridge{Name: "br0", VLANFiltering: true} })
	change("name of a bridge", true, func(*vswitch.Port) { m.Bridges[1] = vswitch.Bridge{Name: "br9"} })
	change("one more", true, func(*vswitch.Port) { m.Ports[5] = vswitch.Port{Name: "vnet1"} })
	r.forget(5)
	change("another by the same name and number", true, func(*vswitch.Port) {})
}

// A port that somebody's rules guard is never open, from the first moment on.
func TestNewPortIsLookedAtFirst(t *testing.T) {
	h := newHost(t, lab.Options{}, lab.DaemonOptions{Config: longLease})
	for i := range 20 {
		name := fmt.Sprintf("vnet%d", i)
		tap, err := lab.OpenTap(h.Host, name, lab.TapOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tap.Close() })
		h.put(t, h.nftRule(nftables.TableFamilyNetdev, nftables.Chain{Name: name, Hooknum: nftables.ChainHookIngress, Device: name}, false, rule{}))
		if err := h.Plug(name); err != nil {
			t.Fatal(err)
		}
		h.awaitPort(t, noticed, name, control.StateFastOut, "nftables table netdev somebody decides over frames of device "+name)
	}
	for line := range strings.Lines(h.Log()) {
		if strings.Contains(line, "port=vnet") && strings.Contains(line, "state=fast") {
			t.Errorf("a guarded port was open: %s", line)
		}
	}
}
