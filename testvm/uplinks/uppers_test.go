package uplinks

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// uppers has devices of other kinds on the same NICs as ports and bridges: they get
// their frames as if there was no fast path.
func uppers(t *testing.T) {
	r := newRig(t)
	wire0, wire1 := r.nic("nic0"), r.nic("nic1")
	r.nic("nic2")
	r.bridge("br0")
	r.bridge("br1")
	r.must(r.host.SetUp("nic0"))
	r.plug(r.vlan("nic0", netlink.VLAN_PROTOCOL_8021Q, 100), "br0")
	r.plug("nic1", "br1")
	r.bond(r.host, "bond0", netlink.BOND_MODE_ACTIVE_BACKUP, "nic2")
	vlan := path{port: "nic0.100", wire: wire0, tags: []uint32{tpidQ | 100}, to: r.guest(0, "br0"), from: net.HardwareAddr{2, 0, 0, 0, 2, 0}}
	plain := path{port: "nic1", wire: wire1, to: r.guest(1, "br1"), from: net.HardwareAddr{2, 0, 0, 0, 2, 1}}

	r.under("none on a port", func() {
		// A device has one taker of its frames, and these want to be it.
		for _, dev := range []string{"nic0.100", "nic1", "vnet1", "nic2"} {
			l, err := r.host.Link(dev)
			r.must(err)
			on := netlink.LinkAttrs{Name: "upper", ParentIndex: l.Attrs().Index}
			for _, upper := range []netlink.Link{
				&netlink.Macvlan{LinkAttrs: on, Mode: netlink.MACVLAN_MODE_BRIDGE},
				&netlink.Macvlan{LinkAttrs: on, Mode: netlink.MACVLAN_MODE_PASSTHRU},
				&netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: on, Mode: netlink.MACVLAN_MODE_BRIDGE}},
				&netlink.IPVlan{LinkAttrs: on},
			} {
				if err := r.host.Netlink().LinkAdd(upper); !errors.Is(err, unix.EBUSY) {
					r.Errorf("a %s on %s: %v, want EBUSY", upper.Type(), dev, err)
				}
			}
		}
	})
	beside := r.upper(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "beside"}, Mode: netlink.MACVLAN_MODE_BRIDGE}, "nic0")
	r.start(`uplinks = ["nic0", "nic1", "netkit0"]
xdp = "always"`)
	for _, p := range []path{vlan, plain} {
		r.learnPath(p)
		r.awaitHook(p.port, native)
	}
	r.awaitEntries(4)

	r.under("beside a VLAN that is a port", func() {
		beside.gets(r, wire0)
		r.deliver("beside a macvlan", vlan, vswitch.HookXDP)
		beside.gets(r, wire0)
		// What has the VLAN's tag is the bridge's, whoever it is for.
		sent := r.frame(beside.mac, vlan.from, vlan.tags...)
		r.must(wire0.Send(sent))
		if got := vlan.to.next(r); number(got) != number(sent) { // the bridge floods it
			r.Errorf("%s got\n%x, want the flooded\n%x", vlan.to.name, got, sent)
		}
		r.deliver("after one for it in the VLAN", vlan, vswitch.HookXDP)
	})
	r.under("on a VLAN of a port", func() {
		r.must(r.host.SetUp(r.vlan("nic1", netlink.VLAN_PROTOCOL_8021Q, 300)))
		above := r.upper(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "above"}, Mode: netlink.MACVLAN_MODE_BRIDGE}, "nic1.300")
		above.gets(r, wire1, tpidQ|300)
		r.deliver("beside a macvlan in a VLAN", plain, vswitch.HookXDP)
		above.gets(r, wire1, tpidQ|300)
	})
	r.under("netkit as a port", func() {
		nk := &netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: "netkit0"}, Mode: netlink.NETKIT_MODE_L2, Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD}
		nk.SetPeerAttrs(&netlink.LinkAttrs{Name: "to-netkit0", Namespace: netlink.NsFd(r.wire.NetNS())})
		if err := r.host.Netlink().LinkAdd(nk); errors.Is(err, unix.EOPNOTSUPP) {
			r.Skip("SKIPPED: this kernel has no netkit")
		} else {
			r.must(err)
		}
		r.must(r.wire.SetUp("to-netkit0"))
		p := path{port: "netkit0", wire: r.open("to-netkit0"), to: plain.to, from: net.HardwareAddr{2, 0, 0, 0, 2, 2}}
		r.plug("netkit0", "br1")
		r.awaitHook("netkit0", "tcx")
		r.learnPath(p)
		r.awaitEntries(5)
		r.deliver("netkit", p, vswitch.HookTC)
	})
	r.under("on the bridge", func() {
		on := r.upper(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "onbridge"}, Mode: netlink.MACVLAN_MODE_BRIDGE}, "br1")
		on.gets(r, wire1) // at once
		r.eventually("the bridge is held back", func() bool {
			p := r.port("nic1")
			return p.State == control.StateHeld && len(p.Held) == 1 && strings.Contains(p.Held[0].Text, "for onbridge")
		})
		on.gets(r, wire1)
		for range 2 * count { // the bridge does not know its address, and floods
			plain.to.next(r)
		}
		r.deliver("the other bridge", vlan, vswitch.HookXDP)
		r.must(r.host.Netlink().LinkDel(on.link))
		r.awaitHook("nic1", native)
		r.deliver("without it", plain, vswitch.HookXDP)
	})
	r.must(r.daemon.Stop())
}

// A station is a device of the host's with an address of its own.
type station struct {
	link   netlink.Link
	mac    net.HardwareAddr
	frames *lab.Packet
}

// upper makes a device on top of another.
func (r *rig) upper(l netlink.Link, below string) *station {
	r.Helper()
	b, err := r.host.Link(below)
	r.must(err)
	l.Attrs().ParentIndex = b.Attrs().Index
	r.link(l)
	name := l.Attrs().Name
	r.must(r.host.SetUp(name))
	made, err := r.host.Link(name)
	r.must(err)
	p, err := lab.OpenPacket(r.host, name)
	r.must(err)
	r.Cleanup(func() { p.Close() })
	p.Keep(ours)
	return &station{made, made.Attrs().HardwareAddr, p}
}

// gets checks that frames to the station arrive.
func (s *station) gets(r *rig, wire *lab.Packet, tags ...uint32) {
	r.Helper()
	for range count {
		sent := r.frame(s.mac, net.HardwareAddr{2, 0, 0, 0, 2, 9}, tags...)
		r.must(wire.Send(sent))
		got, err := s.frames.Next(r.context(), func([]byte) bool { return true })
		r.must(err)
		if !bytes.Equal(got.Data[:12], sent[:12]) || number(got.Data) != number(sent) {
			r.Fatalf("%s got\n%x, want\n%x", s.link.Attrs().Name, got.Data, sent)
		}
	}
}
