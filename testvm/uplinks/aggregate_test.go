package uplinks

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// aggregate has a bond with a partner, of two devices that are active and a third one:
// by LACP one that the partner has not, which the bond takes no frames from; without
// LACP the partner's as well.
func aggregate(t *testing.T, mode netlink.BondMode) {
	lacp := mode == netlink.BOND_MODE_802_3AD
	r := newRig(t)
	var wires [3]*lab.Packet
	nics, far := []string{"nic0", "nic1", "nic2"}, []string{"to-nic0", "to-nic1", "to-nic2"}
	for i, nic := range nics {
		wires[i] = r.nic(nic)
	}
	if lacp {
		far = far[:2]
	}
	r.bridge("br0")
	r.bond(r.wire, "far", mode, far...)
	r.bond(r.host, "bond0", mode, nics...)
	r.plug("bond0", "br0")
	for _, nic := range nics[:len(far)] {
		r.awaitActive(nic)
	}
	p := path{port: "bond0", back: r.open("far"), to: r.guest(0, "br0"), from: net.HardwareAddr{2, 0, 0, 0, 2, 0}}
	by := func(i int) path { p := p; p.wire = wires[i]; return p }
	r.start(`xdp = "always"`)
	r.learnPath(by(0))
	r.awaitHook("bond0", native)
	r.awaitEntries(2)

	r.under("active", func() {
		for i := range far {
			r.awaitNative(by(i))
			r.deliver(nics[i], by(i), vswitch.HookXDP)
		}
	})
	if lacp {
		r.under("not of the aggregate", func() { r.apart(by(0), by(2), "nic2") })
		r.under("LACP goes on", func() {
			// What is no more heard of ends an aggregate after three of its messages.
			before := r.passedGroup()
			r.eventually("the partners' messages have passed", func() bool { return r.passedGroup() >= before+8 })
			of := map[uint16]int{}
			for _, nic := range nics {
				of[r.bonded(nic).AggregatorId]++
			}
			if len(of) != 2 || !r.active("nic0") || !r.active("nic1") {
				r.Errorf("the devices are in aggregates %v, want 2 of them active in one and the other in another", of)
			}
		})
	}
	r.under("down", func() {
		l, err := r.wire.Link("to-nic1")
		r.must(err)
		r.steady(by(0), func() {
			r.must(r.wire.Netlink().LinkSetDown(l))
			r.eventually("nic1 is inactive", func() bool { return !r.active("nic1") })
		})
		r.deliver("nic1 down", by(0), vswitch.HookXDP)
	})
	r.under("up", func() {
		r.steady(by(0), func() {
			r.must(r.wire.SetUp("to-nic1"))
			r.awaitActive("nic1")
		})
		r.awaitNative(by(1))
		r.deliver("nic1 up", by(1), vswitch.HookXDP)
	})
	r.under("removed", func() {
		l, err := r.host.Link("nic1")
		r.must(err)
		r.steady(by(0), func() { r.must(r.host.Netlink().LinkSetNoMaster(l)) })
		r.must(r.host.SetUp("nic1"))
		r.must(r.host.WaitRunning(r.context(), "nic1"))
		r.must(r.wire.WaitRunning(r.context(), "to-nic1"))
		r.apart(by(0), by(1), "nic1")
	})
	r.under("added", func() {
		r.steady(by(0), func() {
			r.join(r.host, "nic1", "bond0")
			r.awaitActive("nic1")
		})
		r.awaitNative(by(1))
		r.deliver("nic1 again", by(1), vswitch.HookXDP)
	})
	r.must(r.daemon.Stop())
	for _, dev := range append(nics, "bond0") {
		l, err := r.host.Link(dev)
		r.must(err)
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			r.Errorf("the daemon left its program on %s", dev)
		}
	}
}

// bonded gives what a bond says of its device; nil if it is no bond's.
func (r *rig) bonded(dev string) *netlink.BondSlave {
	r.Helper()
	l, err := r.host.Link(dev)
	r.must(err)
	s, _ := l.Attrs().Slave.(*netlink.BondSlave)
	return s
}

// active says whether a bond takes frames from its device.
func (r *rig) active(dev string) bool {
	s := r.bonded(dev)
	return s != nil && s.State == netlink.BondStateActive && s.MiiStatus == netlink.BondLinkUp
}

func (r *rig) awaitActive(dev string) {
	r.Helper()
	r.eventually(dev+" is active", func() bool { return r.active(dev) })
}

// awaitNative waits until XDP takes the path's frames, and takes out what has arrived.
func (r *rig) awaitNative(p path) {
	r.Helper()
	r.eventually("XDP serves the path", func() bool {
		before, _ := r.redirected(p.port)
		r.must(p.wire.Send(r.frame(p.to.mac, p.from)))
		after, _ := r.redirected(p.port)
		return after > before
	})
	last := r.numbers + 1
	r.must(p.wire.Send(r.frame(p.to.mac, p.from)))
	for number(p.to.next(r)) != last {
	}
}

func number(f []byte) uint32 { return binary.BigEndian.Uint32(f[len(f)-frameLength+14:]) }

// apart checks that frames to a device that is not the bond's reach no guest.
func (r *rig) apart(in, out path, dev string) {
	r.Helper()
	received := func() uint64 {
		l, err := r.host.Link(dev)
		r.must(err)
		return l.Attrs().Statistics.RxPackets
	}
	before := received()
	for range count {
		r.must(out.wire.Send(r.frame(out.to.mac, out.from)))
	}
	r.eventually(dev+" has had its frames", func() bool { return received() >= before+count })
	r.deliver("beside frames to "+dev, in, vswitch.HookXDP) // which finds none of these
}

// steady sends frames while something happens: each arrives once.
func (r *rig) steady(p path, during func()) {
	r.Helper()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	first := r.numbers + 1
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				if n >= count {
					stopped <- nil
					return
				}
			default:
			}
			if err := p.wire.Send(r.frame(p.to.mac, p.from)); err != nil {
				stopped <- err
				return
			}
			<-tick.C
		}
	}()
	arrived := map[uint32]int{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case f := <-p.to.frames:
				arrived[number(f)]++
			case <-stop:
				return
			}
		}
	}()
	during()
	close(stop)
	<-done
	r.must(<-stopped)
	for last := r.numbers; arrived[last] == 0; {
		arrived[number(p.to.next(r))]++
	}
	lost, doubled := 0, 0
	for n := first; n <= r.numbers; n++ {
		switch arrived[n] {
		case 0:
			lost++
		case 1:
		default:
			doubled++
		}
	}
	if lost+doubled > 0 {
		r.Errorf("of %d frames %d were lost and %d came more than once", r.numbers+1-first, lost, doubled)
	}
	p.to.none(r)
}

// passedGroup counts the frames to groups that XDP left to the bond.
func (r *rig) passedGroup() (n uint64) {
	r.Helper()
	stats, err := r.api.Stats(r.Context())
	r.must(err)
	for _, s := range stats {
		for _, c := range s.Verdicts {
			if s.Port == "bond0" && c.Verdict == vswitch.PassGroup {
				n += c.Frames
			}
		}
	}
	return n
}
