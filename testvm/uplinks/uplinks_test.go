package uplinks

import (
	"bytes"
	"cmp"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	tpidQ  = 0x8100 << 16
	tpidAD = 0x88a8 << 16

	count  = 20 // frames of each kind
	native = "xdp native + tcx"
)

// A path is a way between a station outside and a guest.
type path struct {
	port  string // the uplink
	wire  *lab.Packet
	tags  []uint32 // with which frames are on the wire
	inner []uint32 // with which they are on the bridge
	to    *guest
	from  net.HardwareAddr
	back  *lab.Packet // where frames from the guest arrive, if not at wire
}

func (p path) with(inner ...uint32) path {
	p.tags, p.inner = append(p.tags[:len(p.tags):len(p.tags)], inner...), inner
	return p
}

func (r *rig) learnPath(p path) {
	r.Helper()
	r.learn(p.port, p.from, p.wire.Send, p.tags...)
	r.learn(p.to.name, p.to.mac, func(f []byte) error { _, err := p.to.tap.Write(f); return err })
}

// deliver sends frames both ways, each of which must arrive once, as it should be,
// and be counted as redirected at the hook.
func (r *rig) deliver(what string, p path, hook vswitch.Hook) {
	r.Helper()
	xdp, tc := r.redirected(p.port)
	for range count {
		out := r.frame(p.to.mac, p.from, p.tags...)
		want := append(append(bytes.Clone(out[:12]), out[12+4*len(p.tags)-4*len(p.inner):12+4*len(p.tags)]...), out[12+4*len(p.tags):]...)
		r.must(p.wire.Send(out))
		if got := p.to.next(r); !bytes.Equal(got, want) {
			r.Fatalf("%s: %s got\n%x, want\n%x", what, p.to.name, got, want)
		}
	}
	moreXDP, moreTC := r.redirected(p.port)
	want := [vswitch.NumHooks]uint64{}
	want[hook] = count
	if moreXDP-xdp != want[vswitch.HookXDP] || moreTC-tc != want[vswitch.HookTC] {
		r.Errorf("%s: %s redirected %d more frames by XDP and %d by tc, want %d and %d", what, p.port,
			moreXDP-xdp, moreTC-tc, want[vswitch.HookXDP], want[vswitch.HookTC])
	}
	for range count {
		in := r.frame(p.from, p.to.mac, p.inner...)
		want := r.frame(p.from, p.to.mac, p.tags...)
		copy(want[len(want)-frameLength+14:], in[len(in)-frameLength+14:])
		_, err := p.to.tap.Write(in)
		r.must(err)
		got, err := cmp.Or(p.back, p.wire).Next(r.context(), func([]byte) bool { return true })
		r.must(err)
		if !bytes.Equal(got.Data, want) {
			r.Fatalf("%s: the wire got\n%x, want\n%x", what, got.Data, want)
		}
	}
	p.to.none(r)
}

const config = `uplinks = ["nic2", "nic3"]
xdp = "always"`

func uplinks(t *testing.T) {
	r := newRig(t)
	wire0, wire1, wire2, wire3 := r.nic("nic0"), r.nic("nic1"), r.nic("nic2"), r.nic("nic3")
	for _, name := range []string{"br0", "br150", "br2", "br100", "br200", "br3"} {
		r.bridge(name)
	}
	// A bond and its VLAN; a NIC that is a port with VLANs that are, and one that is
	// not; and a NIC whose VLAN alone is.
	r.bond(r.host, "bond0", netlink.BOND_MODE_ACTIVE_BACKUP, "nic0", "nic1")
	r.plug("bond0", "br0")
	r.plug(r.vlan("bond0", netlink.VLAN_PROTOCOL_8021Q, 150), "br150")
	r.plug("nic2", "br2")
	r.plug(r.vlan("nic2", netlink.VLAN_PROTOCOL_8021Q, 100), "br100")
	r.plug(r.vlan("nic2", netlink.VLAN_PROTOCOL_8021AD, 200), "br200")
	r.must(r.host.SetUp(r.vlan("nic2", netlink.VLAN_PROTOCOL_8021Q, 300)))
	r.must(r.host.SetUp("nic3"))
	r.plug(r.vlan("nic3", netlink.VLAN_PROTOCOL_8021Q, 100), "br3")
	station := func(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 2, n} }
	bond := path{port: "bond0", wire: wire0, to: r.guest(0, "br0"), from: station(0)}
	bondVLAN := path{port: "bond0.150", wire: wire0, tags: []uint32{tpidQ | 150}, to: r.guest(1, "br150"), from: station(1)}
	nic := path{port: "nic2", wire: wire2, to: r.guest(2, "br2"), from: station(2)}
	nicVLAN := path{port: "nic2.100", wire: wire2, tags: []uint32{tpidQ | 100}, to: r.guest(3, "br100"), from: station(3)}
	nicService := path{port: "nic2.200", wire: wire2, tags: []uint32{tpidAD | 200}, to: r.guest(4, "br200"), from: station(4)}
	alone := path{port: "nic3.100", wire: wire3, tags: []uint32{tpidQ | 100}, to: r.guest(5, "br3"), from: station(5)}
	paths := []path{bond, bondVLAN, nic, nicVLAN, nicService, alone}

	r.start(config)
	learn := func() {
		t.Helper()
		for _, p := range paths {
			r.learnPath(p)
			r.awaitHook(p.port, native)
		}
		r.awaitEntries(2 * len(paths))
	}
	learn()

	r.under("native", func() {
		for _, p := range paths {
			r.deliver("plain", p, vswitch.HookXDP)
		}
		priority := nicVLAN
		priority.tags = []uint32{tpidQ | 5<<13 | 100}
		r.arrive("with a priority", priority, vswitch.HookXDP)
		r.deliver("a tag within the VLAN's", nicVLAN.with(tpidQ|7), vswitch.HookTC)
		r.deliver("a tag within the service's", nicService.with(tpidQ|100), vswitch.HookTC)
		r.deliver("a VLAN that nobody takes", nic.with(tpidQ|400), vswitch.HookXDP)
	})
	r.under("VLAN device that is no port", func() {
		r.must(wire2.Send(r.frame(nic.to.mac, nic.from, tpidQ|300)))
		r.deliver("after it", nic, vswitch.HookXDP) // which finds nothing else at the guest
	})
	r.under("restart", func() {
		r.must(r.daemon.Kill())
		r.start(config)
		status, err := r.api.Status(t.Context())
		r.must(err)
		if !status.Datapath.Adopted {
			t.Error("the datapath was not adopted")
		}
		learn()
		for _, p := range paths {
			r.deliver("after a restart", p, vswitch.HookXDP)
		}
	})
	r.under("failover", func() { r.failover(wire0, wire1, bond, bondVLAN) })
	r.under("D6: NIC below hides tags", func() {
		r.must(r.host.SetOffload("nic3", lab.RxVLAN, true))
		r.awaitHook(alone.port, "tcx")
		r.deliver("tags hidden", alone, vswitch.HookTC)
		r.must(r.host.SetOffload("nic3", lab.RxVLAN, false))
		r.awaitHook(alone.port, native)
		r.deliver("and no more", alone, vswitch.HookXDP)
	})
	r.under("D6: frames tell that the NIC hides tags", func() { r.hidden(alone) })
	r.must(r.daemon.Stop())
	for _, dev := range []string{"bond0", "nic0", "nic1", "nic2", "nic3"} {
		l, err := r.host.Link(dev)
		r.must(err)
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			t.Errorf("the daemon left its program on %s", dev)
		}
	}
}

// under runs a part of the test, in the rig as the part before left it.
func (r *rig) under(name string, f func()) {
	outer := r.T
	outer.Run(name, func(t *testing.T) {
		r.T = t
		f()
	})
	if r.T = outer; outer.Failed() {
		outer.FailNow()
	}
}

// arrive is deliver for frames that come back with another tag.
func (r *rig) arrive(what string, p path, hook vswitch.Hook) {
	r.Helper()
	xdp, tc := r.redirected(p.port)
	out := r.frame(p.to.mac, p.from, p.tags...)
	r.must(p.wire.Send(out))
	if got, want := p.to.next(r), append(bytes.Clone(out[:12]), out[16:]...); !bytes.Equal(got, want) {
		r.Fatalf("%s: %s got\n%x, want\n%x", what, p.to.name, got, want)
	}
	moreXDP, moreTC := r.redirected(p.port)
	if got := [vswitch.NumHooks]uint64{vswitch.HookXDP: moreXDP - xdp, vswitch.HookTC: moreTC - tc}; got[hook] != 1 {
		r.Errorf("%s: %s was redirected %v, want once by %s", what, p.port, got, hook)
	}
}

// failover takes the bond's active device away, and gives it back as the backup.
func (r *rig) failover(wire0, wire1 *lab.Packet, paths ...path) {
	far, err := r.wire.Link("to-nic0")
	r.must(err)
	r.must(r.wire.Netlink().LinkSetDown(far))
	for i := range paths {
		p := &paths[i]
		p.wire = wire1
		// The first ones may meet the bond or the daemon before they know.
		r.eventually("the other device is native", func() bool {
			before, _ := r.redirected(p.port)
			r.must(wire1.Send(r.frame(p.to.mac, p.from, p.tags...)))
			after, _ := r.redirected(p.port)
			return after > before
		})
		last := r.frame(p.to.mac, p.from, p.tags...)
		r.must(wire1.Send(last))
		for f := p.to.next(r); !bytes.Equal(f[len(f)-frameLength+14:], last[len(last)-frameLength+14:]); {
			f = p.to.next(r)
		}
		r.deliver("after the failover", *p, vswitch.HookXDP)
	}
	r.must(r.wire.SetUp("to-nic0"))
	r.must(r.host.WaitRunning(r.context(), "nic0"))
	received := func() uint64 {
		l, err := r.host.Link("nic0")
		r.must(err)
		return l.Attrs().Statistics.RxPackets
	}
	before := received()
	for range count {
		for _, p := range paths {
			r.must(wire0.Send(r.frame(p.to.mac, p.from, p.tags...)))
		}
	}
	r.eventually("the backup has had its frames", func() bool { return received() >= before+uint64(count*len(paths)) })
	for _, p := range paths {
		r.deliver("beside frames of the backup", p, vswitch.HookXDP) // which finds none of these
	}
}

// hidden sends frames whose tags are beside them when they come to the NIC, although its
// driver says that it puts none there.
func (r *rig) hidden(p path) {
	below, err := r.wire.Link("to-nic3")
	r.must(err)
	r.must(r.wire.SetOffload("to-nic3", lab.TxVLAN, true))
	r.must(r.wire.Netlink().LinkAdd(&netlink.Vlan{
		LinkAttrs: netlink.LinkAttrs{Name: "tagging", ParentIndex: below.Attrs().Index}, VlanId: 100, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q,
	}))
	r.must(r.wire.SetUp("tagging"))
	aside := r.open("tagging")
	r.eventually("the daemon has seen enough", func() bool {
		for range count {
			r.must(aside.Send(r.frame(p.to.mac, p.from)))
			p.to.next(r)
		}
		return r.port(p.port).Hook == "tcx"
	})
	if held := r.port(p.port).Held; len(held) != 1 || held[0].Code != vswitch.HoldHiddenTags || !strings.Contains(held[0].Text, "although its driver says that it does not") {
		r.Errorf("%s is held because %v, want that nic3 hides tags unasked", p.port, held)
	}
	p.wire, p.tags, p.back = aside, nil, aside
	r.deliver("tags hidden unasked", p, vswitch.HookTC)
}
