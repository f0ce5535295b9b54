package libvirt

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
)

func TestHolds(t *testing.T) {
	const trusted = "; take <filterref> out of the interface if the guest is trusted"
	both := func(code vswitch.HoldCode, text string) []vswitch.HoldReason {
		return []vswitch.HoldReason{{Code: code, Direction: vswitch.Both, Text: text}}
	}
	filter := func(f FilterRef) Interface { return Interface{Type: "bridge", Bridge: "br0", Filter: &f} }
	known := func(frames vswitch.Filter) Interface {
		return filter(FilterRef{Name: "shop", Known: &KnownFilter{Frames: frames}})
	}
	honoured := func(d vswitch.Direction, what string) []vswitch.HoldReason {
		return []vswitch.HoldReason{{Code: vswitch.HoldFilter, Direction: d, Text: "libvirt's filter shop is honoured: by the fast path go " + what + "; the rest goes by the bridge and the filter"}}
	}
	for _, tt := range []struct {
		name string
		n    Interface
		want []vswitch.HoldReason
	}{
		{name: "bridge", n: Interface{Type: "bridge", Bridge: "br0"}},
		{name: "network", n: Interface{Type: "network", Network: "default", Bridge: "virbr0"}},
		{name: "what the kernel tells", n: Interface{Type: "bridge", Isolated: true, MTU: 9000, LinkDown: true, VLANs: []uint16{7}, TrustRxFilters: true, ToGuest: &Limit{Average: 1}}},
		{name: "ethernet", n: Interface{Type: "ethernet"}, want: []vswitch.HoldReason{{Code: vswitch.HoldInterface, Text: "libvirt puts the tap of <interface type='ethernet'> on no bridge; it is fast where something else does"}}},
		{name: "Open vSwitch", n: Interface{Type: "bridge", Bridge: "ovs", VirtualPort: "openvswitch"}, want: both(vswitch.HoldInterface, "<virtualport type='openvswitch'> is no port of a Linux bridge, but of a switch of another kind")},
		{name: "L8 direct", n: Interface{Type: "direct"}, want: both(vswitch.HoldInterface, "a macvtap sits on its NIC itself, past any bridge; <interface type='bridge'> is what the fast path serves")},
		{name: "L8 hostdev", n: Interface{Type: "hostdev"}, want: both(vswitch.HoldInterface, "the guest has the NIC's own function, and the host sees none of its frames")},
		{name: "L8 vhostuser", n: Interface{Type: "vhostuser"}, want: both(vswitch.HoldInterface, "frames go to another process's switch by shared memory, past the kernel; <interface type='bridge'> is what the fast path serves")},
		{name: "L8 user", n: Interface{Type: "user"}, want: both(vswitch.HoldInterface, "the guest is behind a network stack of its own in a process, with no tap; <interface type='bridge'> is what the fast path serves")},
		{name: "a later type", n: Interface{Type: "quantum"}, want: both(vswitch.HoldInterface, "<interface type='quantum'> is not known to have a tap on a bridge")},
		{name: "a filter", n: known(vswitch.Filter{In: vswitch.FramesIPv4, Out: vswitch.FramesAll}), want: honoured(0, "IPv4 in, all frames out")},
		{name: "a filter of all that the guest sends", n: known(vswitch.Filter{Out: vswitch.FramesAll}), want: honoured(vswitch.In, "no frames in, all frames out")},
		{name: "a filter of all", n: known(vswitch.Filter{}), want: honoured(vswitch.Both, "no frames in, no frames out")},
		{name: "a filter that stops nothing", n: filter(FilterRef{Name: "shop", Known: &KnownFilter{Open: true}}), want: []vswitch.HoldReason{{Code: vswitch.HoldFilter, Text: "libvirt's filter shop stops no unicast frame"}}},
		{name: "a filter that is not understood", n: filter(FilterRef{Name: "shop", Unclear: "it rains"}), want: both(vswitch.HoldFilter, "libvirt's filter shop decides over its frames, but it rains; or take <filterref> out of the interface if the guest is trusted")},
		{name: "a filter that nobody has asked for", n: filter(FilterRef{Name: "shop"}), want: both(vswitch.HoldFilter, "libvirt's filter shop decides over its frames, and libvirt has not been asked what it says"+trusted)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, tt.n.Holds()); d != "" {
				t.Errorf("holds (-want +got):\n%s", d)
			}
		})
	}
}

func TestPromotable(t *testing.T) {
	for _, tt := range []struct {
		name string
		n    Interface
		want bool
		why  string
	}{
		{"virtio", Interface{Type: "bridge", Model: "virtio", HostOffloads: allOfHost}, false, "the guest may leave to the host: csum, gso, tso4, tso6, ecn, ufo"},
		{"one is left on", Interface{Type: "bridge", Model: "virtio", HostOffloads: Offloads{TSO6: true}}, false, "the guest may leave to the host: tso6"},
		{"all off", Interface{Type: "network", Model: "virtio-non-transitional"}, true, "the guest may leave nothing to the host: all of <driver><host> is off"},
		{"guest offloads are of the other way", Interface{Type: "bridge", Model: "virtio", GuestOffloads: allOfGuest}, true, "the guest may leave nothing to the host: all of <driver><host> is off"},
		{"rtl8139", Interface{Type: "bridge", Model: "rtl8139", HostOffloads: allOfHost}, true, "QEMU completes the frames of model rtl8139"},
		{"e1000e", Interface{Type: "bridge", Model: "e1000e"}, false, "a guest with model e1000e may leave checksums and segments to the host"},
		{"unknown model", Interface{Type: "bridge", Model: "warp"}, false, "a guest with model warp may leave checksums and segments to the host"},
		{"no model", Interface{Type: "bridge"}, false, "which model the NIC is, the XML leaves to libvirt"},
		{"no tap", Interface{Type: "hostdev", Model: "virtio"}, false, "the guest has the NIC's own function, and the host sees none of its frames"},
	} {
		if ok, why := tt.n.Promotable(); ok != tt.want || why != tt.why {
			t.Errorf("%s: %v because %q, want %v because %q", tt.name, ok, why, tt.want, tt.why)
		}
	}
}
