package vswitch_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	br0, br1, uplink0, guest0, guest1, veth0 = 1, 2, 10, 20, 21, 30
)

// observe gives a bridge with an uplink, two guests and a veth, all in order,
// after changes.
func observe(changes ...func(*vswitch.Observation)) *vswitch.Observation {
	port := func(i int, name, kind string, role vswitch.Role) vswitch.Port {
		return vswitch.Port{
			Ifindex: i, Name: name, Bridge: br0, Role: role, Kind: kind,
			MTU: 1500, Up: true, STP: vswitch.STPForwarding,
		}
	}
	o := &vswitch.Observation{
		Bridges: map[int]vswitch.Bridge{br0: {Ifindex: br0, Name: "br0", Up: true}, br1: {Ifindex: br1, Name: "br1", Up: true}},
		Ports: map[int]vswitch.Port{
			uplink0: port(uplink0, "eth0", "device", vswitch.RoleUplink),
			guest0:  port(guest0, "vnet0", "tun", vswitch.RoleGuest),
			guest1:  port(guest1, "vnet1", "tun", vswitch.RoleGuest),
			veth0:   port(veth0, "veth0", "veth", vswitch.RoleOther),
		},
		Holds:    map[int][]vswitch.HoldReason{},
		Attached: map[int]bool{},
	}
	for _, change := range changes {
		change(o)
	}
	return o
}

func port(ifindex int, change func(*vswitch.Port)) func(*vswitch.Observation) {
	return func(o *vswitch.Observation) {
		p := o.Ports[ifindex]
		change(&p)
		o.Ports[ifindex] = p
	}
}

func veth(mtu int) func(*vswitch.Observation) {
	return port(uplink0, func(p *vswitch.Port) { p.Kind, p.MTU, p.VethMTU = "veth", mtu, mtu })
}

func xdp(mode vswitch.XDPMode) func(*vswitch.Observation) {
	return func(o *vswitch.Observation) { o.XDP = mode }
}

func aware(tpid uint16) func(*vswitch.Observation) {
	return bridge(func(b *vswitch.Bridge) { b.VLANFiltering, b.VLANProtocol = true, tpid })
}

func bridge(change func(*vswitch.Bridge)) func(*vswitch.Observation) {
	return func(o *vswitch.Observation) {
		b := o.Bridges[br0]
		change(&b)
		o.Bridges[br0] = b
	}
}

func hold(ifindex int, r vswitch.HoldReason) func(*vswitch.Observation) {
	return func(o *vswitch.Observation) { o.Holds[ifindex] = append(o.Holds[ifindex], r) }
}

func TestPlanPort(t *testing.T) {
	type result struct {
		Attach, In, Out bool
		MaxFrame        int
		State           string
		Held            []vswitch.HoldCode
	}
	fast := result{true, true, true, 1514, "fast", nil}
	held := func(attach bool, codes ...vswitch.HoldCode) result {
		return result{attach, false, false, 1514, "held", codes}
	}
	tests := []struct {
		name    string
		ifindex int
		changes []func(*vswitch.Observation)
		want    result
	}{
		{"guest", guest0, nil, fast},
		{"uplink", uplink0, nil, fast},
		{"neither", veth0, nil, held(false, vswitch.HoldRole)},
		{"jumbo", guest0, []func(*vswitch.Observation){port(guest0, func(p *vswitch.Port) { p.MTU = 9000 })},
			result{true, true, true, 9014, "fast", nil}},
		{"no carrier", guest0, []func(*vswitch.Observation){port(guest0, func(p *vswitch.Port) { p.Up = false })},
			held(true, vswitch.HoldDown)},
		{"bridge down", guest0, []func(*vswitch.Observation){bridge(func(b *vswitch.Bridge) { b.Up = false })},
			held(true, vswitch.HoldDown)},
		{"blocked by spanning tree", uplink0, []func(*vswitch.Observation){port(uplink0, func(p *vswitch.Port) { p.STP = vswitch.STPBlocking })},
			held(true, vswitch.HoldSTP)},
		{"learning only", uplink0, []func(*vswitch.Observation){port(uplink0, func(p *vswitch.Port) { p.STP = vswitch.STPLearning })},
			held(true, vswitch.HoldSTP)},
		{"VLAN-aware bridge", guest0, []func(*vswitch.Observation){aware(0x8100)}, fast},
		{"VLAN-aware bridge with service tags", guest0, []func(*vswitch.Observation){aware(0x88a8)}, fast},
		{"VLAN-aware bridge with other tags", guest0, []func(*vswitch.Observation){aware(0x9100)}, held(true, vswitch.HoldVLAN)},
		{"VLAN-aware bridge, VLAN device on the port", guest0, []func(*vswitch.Observation){aware(0x8100),
			port(guest0, func(p *vswitch.Port) { p.TakenVLANs = &vswitch.VLANSet{} })}, held(true, vswitch.HoldVLAN)},
		{"VLAN device on the port", guest0, []func(*vswitch.Observation){
			port(guest0, func(p *vswitch.Port) { p.TakenVLANs = &vswitch.VLANSet{} })}, fast},
		{"a flag of the port's", guest0, []func(*vswitch.Observation){port(guest0, func(p *vswitch.Port) { p.Settings = []string{"vlan_tunnel=on"} })},
			held(true, vswitch.HoldSettings)},
		{"foreign program", guest0, []func(*vswitch.Observation){hold(guest0, vswitch.Hold(vswitch.HoldForeign, "x"))},
			held(false, vswitch.HoldForeign)},
		{"policy on the bridge", guest0, []func(*vswitch.Observation){hold(br0, vswitch.Hold("policy", "x"))},
			held(true, "policy")},
		{"policy for one direction", guest0, []func(*vswitch.Observation){hold(guest0, vswitch.HoldReason{Code: "policy", Direction: vswitch.Out})},
			result{true, true, false, 1514, "fast in", []vswitch.HoldCode{"policy"}}},
		{"policy for the other", guest0, []func(*vswitch.Observation){hold(guest0, vswitch.HoldReason{Code: "policy", Direction: vswitch.In})},
			result{true, false, true, 1514, "fast out", []vswitch.HoldCode{"policy"}}},
		{"limited", guest0, []func(*vswitch.Observation){hold(guest0, vswitch.HoldReason{Code: "policy", Direction: vswitch.OutXDP})},
			result{true, true, true, 1514, "fast", []vswitch.HoldCode{"policy"}}},
		{"promoted", guest0, []func(*vswitch.Observation){port(guest0, func(p *vswitch.Port) { p.Promoted = true })}, fast},
		{"promoted, without XDP", guest0, []func(*vswitch.Observation){port(guest0, func(p *vswitch.Port) { p.Promoted = true }),
			hold(guest0, vswitch.HoldReason{Code: vswitch.HoldNoXDP, Text: "x"})},
			result{true, true, true, 1514, "fast", []vswitch.HoldCode{vswitch.HoldNoXDP}}},
		{"veth", uplink0, []func(*vswitch.Observation){veth(3500)},
			result{true, true, true, 3514, "fast", []vswitch.HoldCode{vswitch.HoldNoXDP}}},
		{"veth, XDP always", uplink0, []func(*vswitch.Observation){veth(3500), xdp(vswitch.XDPAlways)},
			result{true, true, true, 3514, "fast", nil}},
		{"veth with pages, XDP always", uplink0, []func(*vswitch.Observation){veth(3501), xdp(vswitch.XDPAlways)},
			result{true, true, true, 3515, "fast", []vswitch.HoldCode{vswitch.HoldNoXDP}}},
		{"XDP never", uplink0, []func(*vswitch.Observation){xdp(vswitch.XDPNever)},
			result{true, true, true, 1514, "fast", []vswitch.HoldCode{vswitch.HoldNoXDP}}},
		{"XDP never, of a guest", guest0, []func(*vswitch.Observation){xdp(vswitch.XDPNever)}, fast},
		{"driver without XDP", uplink0, []func(*vswitch.Observation){hold(uplink0, vswitch.HoldReason{Code: vswitch.HoldNoXDP, Text: "x"})},
			result{true, true, true, 1514, "fast", []vswitch.HoldCode{vswitch.HoldNoXDP}}},
		{"several reasons", veth0, []func(*vswitch.Observation){
			port(veth0, func(p *vswitch.Port) { p.Up = false; p.STP = vswitch.STPDisabled }),
		}, held(false, vswitch.HoldRole, vswitch.HoldDown, vswitch.HoldSTP)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := vswitch.NewPlan(observe(tt.changes...)).Ports[tt.ifindex]
			if want := tt.want.Attach && (tt.ifindex == uplink0 || tt.name == "promoted") && !slices.Contains(tt.want.Held, vswitch.HoldNoXDP); p.Config.XDP != want {
				t.Errorf("XDP is wanted: %t, want %t", p.Config.XDP, want)
			}
			if want := tt.name == "limited"; p.Config.Queued != want {
				t.Errorf("its qdisc must be gone through: %t, want %t", p.Config.Queued, want)
			}
			got := result{p.Config.Attach, p.Config.In, p.Config.Out, p.Config.MaxFrame, p.State(), nil}
			for _, h := range p.Held {
				got.Held = append(got.Held, h.Code)
				if h.Text == "" && h.Code != "policy" {
					t.Errorf("%s has no text", h.Code)
				}
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What VLANs a port has counts on a VLAN-aware bridge, and which ones devices take on
// another.
func TestPlanVLANs(t *testing.T) {
	own, taken := &vswitch.VLANSet{PVID: 1}, &vswitch.VLANSet{}
	both := port(guest0, func(p *vswitch.Port) { p.VLANs, p.TakenVLANs = own, taken })
	if c := vswitch.NewPlan(observe(both)).Ports[guest0].Config; c.VLANs != taken || c.VLANProtocol != 0 {
		t.Errorf("on a bridge that is not VLAN-aware: %+v", c)
	}
	if c := vswitch.NewPlan(observe(both, aware(0x88a8))).Ports[guest0].Config; c.VLANs != own || c.VLANProtocol != 0x88a8 {
		t.Errorf("on a VLAN-aware bridge: %+v", c)
	}
}

func TestPlanUnmerged(t *testing.T) {
	noTSO := func(p *vswitch.Port) { p.NoTSO = true }
	for _, tt := range []struct {
		name    string
		changes []func(*vswitch.Observation)
		want    []int
	}{
		{"none", nil, nil},
		{"a guest", []func(*vswitch.Observation){port(guest1, noTSO)}, []int{uplink0, guest1}},
		{"a NIC", []func(*vswitch.Observation){port(uplink0, noTSO)}, nil},
		{"a guest of another bridge", []func(*vswitch.Observation){port(guest1, func(p *vswitch.Port) { p.NoTSO, p.Bridge = true, br1 })}, []int{guest1}},
	} {
		var got []int
		for ifindex, p := range vswitch.NewPlan(observe(tt.changes...)).Ports {
			if p.Config.Unmerged {
				got = append(got, ifindex)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s without TSO: unmerged are %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestPlanBridges(t *testing.T) {
	noGuests := func(o *vswitch.Observation) { delete(o.Ports, guest0); delete(o.Ports, guest1) }
	tests := []struct {
		name    string
		changes []func(*vswitch.Observation)
		ports   int
	}{
		{"bridge with guests", nil, 4},
		{"bridge without guests is left alone", []func(*vswitch.Observation){noGuests}, 0},
		{"its uplink stays if it was attached", []func(*vswitch.Observation){noGuests,
			func(o *vswitch.Observation) { o.Attached[uplink0] = true }}, 2},
		{"bridge is gone", []func(*vswitch.Observation){func(o *vswitch.Observation) { delete(o.Bridges, br0) }}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := len(vswitch.NewPlan(observe(tt.changes...)).Ports); got != tt.ports {
				t.Errorf("got %d ports, want %d", got, tt.ports)
			}
		})
	}
}

func TestPlanEntry(t *testing.T) {
	own := vswitch.MAC{2, 0, 0, 0, 0, 2}
	plan := vswitch.NewPlan(observe(
		port(guest1, func(p *vswitch.Port) { p.Flags.Locked = true }),
		func(o *vswitch.Observation) {
			br := o.Bridges[br0]
			br.MAC = own
			o.Bridges[br0] = br
		},
	))
	mac := vswitch.MAC{2, 0, 0, 0, 0, 1}
	entry := func(bridge, port int, m vswitch.MAC, o vswitch.Origin) vswitch.FDBEntry {
		return vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: bridge, MAC: m}, Port: port, Origin: o}
	}
	tests := []struct {
		name string
		e    vswitch.FDBEntry
		port int
		ok   bool
	}{
		{"learned", entry(br0, guest0, mac, vswitch.OriginLearned), guest0, true},
		{"learned on a locked port", entry(br0, guest1, mac, vswitch.OriginLearned), 0, false},
		{"static on a locked port", entry(br0, guest1, mac, vswitch.OriginStatic), guest1, true},
		{"static", entry(br0, guest0, mac, vswitch.OriginStatic), guest0, true},
		{"behind a held port", entry(br0, veth0, mac, vswitch.OriginLearned), veth0, true},
		{"port's own", entry(br0, guest0, mac, vswitch.OriginLocal), 0, false},
		{"bridge's own", entry(br0, br0, own, vswitch.OriginLocal), vswitch.Host, true},
		{"bridge's own, from a port", entry(br0, guest0, own, vswitch.OriginLocal), vswitch.Host, true},
		{"group", entry(br0, guest0, vswitch.MAC{1}, vswitch.OriginStatic), 0, false},
		{"unknown port", entry(br0, 99, mac, vswitch.OriginLearned), 99, false},
		{"bridge without guests", entry(br1, guest0, mac, vswitch.OriginLocal), 0, false},
		{"of a VLAN that the bridge does not use", vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: br0, VLAN: 1, MAC: mac}, Port: guest0}, 0, false},
		{"none", vswitch.FDBEntry{}, 0, false},
	}
	for _, tt := range tests {
		port, ok := plan.Entry(tt.e)
		if ok != tt.ok || ok && port != tt.port {
			t.Errorf("%s: got %d, %t, want %d, %t", tt.name, port, ok, tt.port, tt.ok)
		}
	}
}

func TestPlanIsPure(t *testing.T) {
	o := observe(hold(guest0, vswitch.Hold(vswitch.HoldForeign, "x")))
	before := observe(hold(guest0, vswitch.Hold(vswitch.HoldForeign, "x")))
	first, second := vswitch.NewPlan(o), vswitch.NewPlan(o)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("two plans of one observation differ:\n%s", diff)
	}
	if diff := cmp.Diff(before, o); diff != "" {
		t.Errorf("planning changed the observation:\n%s", diff)
	}
}

var errDriver = errors.New("driver says no")
