package uplinks

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// bound is how long what takes milliseconds may: the guest's CPU is emulated.
const bound = 30 * time.Second

// A rig is a host with a daemon, and what its NICs are connected to. A NIC is a veth,
// which has native XDP like a real one.
type rig struct {
	*testing.T
	host, wire *lab.Node
	daemon     *lab.Daemon
	api        *control.Client
	numbers    uint32 // of frames
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t}
	r.host, r.wire = r.node("host"), r.node("wire")
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) node(name string) *lab.Node {
	n, err := lab.NewNode(name)
	r.must(err)
	r.Cleanup(func() { n.Close() })
	for _, which := range []string{"all", "default"} { // no frames but the test's
		r.must(n.SetSysctl("net/ipv6/conf/"+which+"/disable_ipv6", "1"))
	}
	return n
}

func (r *rig) context() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), bound)
	r.Cleanup(cancel)
	return ctx
}

// eventually waits for what makes no event.
func (r *rig) eventually(what string, ready func() bool) {
	r.Helper()
	ctx := r.context()
	for !ready() {
		select {
		case <-ctx.Done():
			ports, err := r.api.Ports(r.Context())
			r.Fatalf("waited %v until %s; ports are %+v (%v)\n%s", bound, what, ports, err, r.daemon.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// link makes a device of the host, down.
func (r *rig) link(l netlink.Link) {
	r.Helper()
	if err := r.host.Netlink().LinkAdd(l); err != nil {
		r.Fatalf("making %s: %v", l.Attrs().Name, err)
	}
}

// nic makes a NIC of the host and opens its other end.
func (r *rig) nic(name string) *lab.Packet {
	r.Helper()
	far := "to-" + name
	r.link(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: far, PeerNamespace: netlink.NsFd(r.wire.NetNS()),
	})
	r.must(r.host.SetOffload(name, lab.RxVLAN, false))
	r.must(r.wire.SetUp(far))
	return r.open(far)
}

// open opens a device of the wire's for the test's frames.
func (r *rig) open(dev string) *lab.Packet {
	r.Helper()
	p, err := lab.OpenPacket(r.wire, dev)
	r.must(err)
	r.Cleanup(func() { p.Close() })
	p.Keep(func(f []byte) bool { return ours(f) && f[0]&1 == 0 })
	return p
}

// plug makes a device a port of a bridge, and brings it up.
func (r *rig) plug(dev, master string) {
	r.Helper()
	d, err := r.host.Link(dev)
	r.must(err)
	m, err := r.host.Link(master)
	r.must(err)
	r.must(r.host.Netlink().LinkSetMaster(d, m))
	r.must(r.host.SetUp(dev))
}

func (r *rig) bridge(name string) {
	r.Helper()
	r.link(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
	r.must(r.host.SetForwardDelay(name, 0))
	r.must(r.host.SetUp(name))
}

// bond makes a bond of a node's devices.
func (r *rig) bond(n *lab.Node, name string, mode netlink.BondMode, devices ...string) {
	r.Helper()
	b := netlink.NewLinkBond(netlink.LinkAttrs{Name: name})
	b.Mode, b.Miimon = mode, 10
	if mode == netlink.BOND_MODE_802_3AD {
		b.LacpRate = netlink.BOND_LACP_RATE_FAST
	}
	if err := n.Netlink().LinkAdd(b); err != nil {
		r.Fatalf("making %s: %v", name, err)
	}
	for _, dev := range devices {
		r.join(n, dev, name)
	}
	r.must(n.SetUp(name))
}

// join makes a device one of a bond's, which takes it only while it is down.
func (r *rig) join(n *lab.Node, dev, bond string) {
	r.Helper()
	d, err := n.Link(dev)
	r.must(err)
	b, err := n.Link(bond)
	r.must(err)
	r.must(n.Netlink().LinkSetDown(d))
	r.must(n.Netlink().LinkSetMaster(d, b))
	r.must(n.SetUp(dev))
}

// vlan makes a VLAN device and gives its name.
func (r *rig) vlan(below string, tpid netlink.VlanProtocol, id int) string {
	r.Helper()
	l, err := r.host.Link(below)
	r.must(err)
	name := fmt.Sprintf("%s.%d", below, id)
	r.link(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: l.Attrs().Index}, VlanId: id, VlanProtocol: tpid})
	return name
}

// A guest is a tap, and the address of what is behind it.
type guest struct {
	tap    *lab.Tap
	name   string
	mac    net.HardwareAddr
	frames chan []byte
}

// guest makes a guest on a bridge.
func (r *rig) guest(number byte, bridge string) *guest {
	r.Helper()
	g := &guest{name: fmt.Sprintf("vnet%d", number), mac: net.HardwareAddr{2, 0, 0, 0, 1, number}, frames: make(chan []byte, 1024)}
	var err error
	g.tap, err = lab.OpenTap(r.host, g.name, lab.TapOptions{})
	r.must(err)
	r.plug(g.name, bridge)
	done := make(chan struct{})
	r.Cleanup(func() { g.tap.Close(); <-done })
	go func() {
		defer close(done)
		for b := make([]byte, lab.MaxFrameLen); ; {
			n, err := g.tap.Read(b)
			if err != nil {
				return
			}
			if f := bytes.Clone(b[:n]); ours(f) && f[0]&1 == 0 {
				g.frames <- f
			}
		}
	}()
	return g
}

// The test's frames have a type of their own, behind any tags, and a number.
const frameType = 0x88b6

func ours(f []byte) bool {
	return len(f) == frameLength || len(f) > frameLength && len(f) <= frameLength+8 && binary.BigEndian.Uint16(f[len(f)-frameLength+12:]) == frameType
}

const frameLength = 80

func (r *rig) frame(dst, src net.HardwareAddr, tags ...uint32) []byte {
	r.numbers++
	f := append(append([]byte{}, dst...), src...)
	for _, tag := range tags {
		f = binary.BigEndian.AppendUint32(f, tag)
	}
	f = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(f, frameType), r.numbers)
	return append(f, make([]byte, frameLength-18)...)
}

var everybody = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// start starts a daemon, or one anew.
func (r *rig) start(config string) {
	r.Helper()
	d, err := r.host.StartDaemon(r.context(), lab.DaemonOptions{Path: os.Getenv(lab.DaemonEnv), Config: config, Name: "uplinks"})
	r.must(err)
	r.daemon, r.api = d, control.Dial(d.Socket)
	r.Cleanup(r.api.Close)
}

// learn makes a bridge know an address.
func (r *rig) learn(port string, mac net.HardwareAddr, send func([]byte) error, tags ...uint32) {
	r.Helper()
	r.must(send(r.frame(everybody, mac, tags...)))
	r.must(r.host.WaitFDB(r.context(), port, mac))
}

// awaitEntries waits until so many addresses of the test are on the fast path.
func (r *rig) awaitEntries(n int) {
	r.Helper()
	r.eventually(fmt.Sprintf("the fast path knows %d addresses", n), func() bool {
		entries, err := r.api.FDB(r.Context(), control.FDBFilter{})
		r.must(err)
		fast := 0
		for _, e := range entries {
			if e.Fast && bytes.HasPrefix(e.MAC[:], []byte{2, 0, 0, 0}) && e.Port != control.HostPort {
				fast++
			}
		}
		return fast == n
	})
}

func (r *rig) port(name string) control.Port {
	r.Helper()
	ports, err := r.api.Ports(r.Context())
	r.must(err)
	for _, p := range ports {
		if p.Name == name {
			return p
		}
	}
	return control.Port{}
}

// awaitHook waits until a port is served as it should be.
func (r *rig) awaitHook(port, hook string) {
	r.Helper()
	r.eventually(fmt.Sprintf("%s has %q", port, hook), func() bool {
		p := r.port(port)
		return p.Hook == hook && p.State == control.StateFast
	})
}

// byXDP and byTC count the frames from a port that the hooks redirected.
func (r *rig) redirected(port string) (byXDP, byTC uint64) {
	r.Helper()
	stats, err := r.api.Stats(r.Context())
	r.must(err)
	count := func(counts []control.VerdictCount) (n uint64) {
		for _, c := range counts {
			if c.Verdict == vswitch.Redirected {
				n += c.Frames
			}
		}
		return n
	}
	for _, s := range stats {
		switch {
		case s.Port != port:
		case len(s.Merged) == 0 && r.port(port).Hook == "tcx": // it has never had XDP
			return 0, count(s.Verdicts)
		default:
			return count(s.Verdicts), count(s.Merged)
		}
	}
	return 0, 0
}

// next gives the next frame that reaches a guest.
func (g *guest) next(r *rig) []byte {
	r.Helper()
	select {
	case f := <-g.frames:
		return f
	case <-r.context().Done():
		r.Fatalf("no frame has reached %s in %v\n%s", g.name, bound, r.daemon.Log())
		return nil
	}
}

// none says that nothing has reached a guest beside what was asked for.
func (g *guest) none(r *rig) {
	r.Helper()
	select {
	case f := <-g.frames:
		r.Errorf("%s got a frame that it should not: %x", g.name, f)
	default:
	}
}
