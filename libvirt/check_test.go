package libvirt

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
)

func TestCheck(t *testing.T) {
	virtio := func(change func(*Interface)) Interface {
		n := Interface{Type: "bridge", Bridge: "br0", Model: "virtio", Queues: 4, HostOffloads: allOfHost}
		change(&n)
		return n
	}
	for _, tt := range []struct {
		name    string
		n       Interface
		in, out string
		changes []string // by tune, by flag, or by hand
	}{
		{"tuned", virtio(func(n *Interface) { n.HostOffloads = Offloads{} }), WayXDP, WayFast, nil},
		{"offloads", virtio(func(*Interface) {}), WayTC, WayFast, []string{"tune --native-xdp <driver><host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/></driver>"}},
		{"queues and vhost", virtio(func(n *Interface) { n.HostOffloads = Offloads{}; n.Queues = 3; n.Driver = "qemu" }), WayXDP, WayFast, []string{"tune <driver> without name='qemu'", "tune <driver queues='4'/>"}},
		{"the tap of somebody else", virtio(func(n *Interface) { n.Type = "ethernet"; n.HostOffloads = Offloads{}; n.Queues = 1 }), WayXDP, WayFast, nil},
		{"e1000", virtio(func(n *Interface) { n.Model = "e1000" }), WayXDP, WayFast, []string{"tune --virtio <model type='virtio'/>"}},
		{"no model", virtio(func(n *Interface) { n.Model = "" }), WayTC, WayFast, nil},
		{"limit to the guest", virtio(func(n *Interface) { n.HostOffloads = Offloads{}; n.ToGuest = &Limit{Average: 1} }), WayXDP, WayBridge, nil},
		{"limit from the guest", virtio(func(n *Interface) { n.HostOffloads = Offloads{}; n.FromGuest = &Limit{Average: 1} }), WayBridge, WayBridge, nil},
		{"link down", virtio(func(n *Interface) { n.HostOffloads = Offloads{}; n.LinkDown = true }), WayBridge, WayBridge, nil},
		{"isolated, VLAN", virtio(func(n *Interface) { n.HostOffloads = Offloads{}; n.Isolated = true; n.VLANs = []uint16{7} }), WayXDP, WayFast, nil},
		{"filter of what the guest sends", virtio(func(n *Interface) {
			n.HostOffloads = Offloads{}
			n.Filter = &FilterRef{Name: "shop", Known: &KnownFilter{Frames: vswitch.Filter{Out: vswitch.FramesAll}}}
		}), WayBridge, WayFast, []string{" no <filterref filter='shop'>"}},
		{"filter that is honoured", virtio(func(n *Interface) {
			n.HostOffloads = Offloads{}
			n.Filter = &FilterRef{Name: "clean-traffic", Known: &KnownFilter{Frames: vswitch.Filter{In: vswitch.FramesIPv4, Out: vswitch.FramesIPv4}}}
		}), WayXDP, WayFast, nil},
		{"filter that nobody has asked for", virtio(func(n *Interface) { n.HostOffloads = Offloads{}; n.Filter = &FilterRef{Name: "clean-traffic"} }), WayBridge, WayBridge, []string{" no <filterref filter='clean-traffic'>"}},
		{"macvtap", virtio(func(n *Interface) { n.Type = "direct"; n.FromGuest = &Limit{Average: 1} }), WayNone, WayNone, []string{" <interface type='bridge'>"}},
		{"hostdev", virtio(func(n *Interface) { n.Type = "hostdev" }), WayNone, WayNone, nil},
	} {
		c := Domain{VCPUs: 2}.Check(tt.n)
		if c.In != tt.in || c.Out != tt.out {
			t.Errorf("%s: in by %s, out by %s, want %s and %s", tt.name, c.In, c.Out, tt.in, tt.out)
		}
		var changes []string
		for _, a := range c.Advice {
			changes = append(changes, a.By+" "+a.Change)
		}
		if d := cmp.Diff(tt.changes, changes); d != "" {
			t.Errorf("%s: advice (-want +got):\n%s", tt.name, d)
		}
	}
	if a := (Domain{VCPUs: 200}).Check(virtio(func(n *Interface) { n.HostOffloads = Offloads{} })).Advice; len(a) != 1 || a[0].Change != "<driver queues='256'/>" {
		t.Errorf("advice for 200 vCPUs is %+v", a)
	}
}
