package matrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A mode is who forwards.
type mode string

const (
	plain mode = "bridge"
	tcx   mode = "tcx"
	xdp   mode = "xdp" // where the frames are whole; tcx for the rest
)

// patience is how long anything may take that takes milliseconds.
const patience = 20 * time.Second

// The ports of a host. Frames go from sender to receiver and to the wire, and
// from the wire to the receiver.
const (
	sender   = "vnet0"
	receiver = "vnet1"
	wire     = lab.NIC
)

var stations = map[string]station{
	sender:   {net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}, net.IP{198, 18, 0, 11}, net.ParseIP("2001:db8::11")},
	receiver: {net.HardwareAddr{0x52, 0x54, 0, 0, 0, 2}, net.IP{198, 18, 0, 12}, net.ParseIP("2001:db8::12")},
	// Not the wire's own addresses: its stack would answer.
	wire: {net.HardwareAddr{0x52, 0x54, 0, 0, 0, 3}, net.IP{198, 18, 0, 13}, net.ParseIP("2001:db8::13")},
}

// tapMAC is a tap's own address.
func tapMAC(port string) net.HardwareAddr {
	return append(net.HardwareAddr{0xfe}, stations[port].mac[1:]...)
}

// A host is a bridge with two taps and a NIC.
type host struct {
	*lab.Lab
	ends    map[string]*end
	arrived map[string]<-chan frame
	tunnel  map[bool]*end // a VXLAN device on the wire, by whether over IPv6
	tunnels bool          // the kernel's taps have them
	api     *control.Client
	mtu     int
	// wireCuts says that frames on the wire are complete.
	wireCuts bool
}

// newHost makes a host whose receiving ends take offloads or don't. On the wire
// of one that is to use XDP frames are as on a wire, complete; on another's they
// may be as a guest's.
//
// prepare, if it is not nil, changes the host before the daemon starts.
func newHost(t *testing.T, m mode, offloads bool, mtu int, prepare func(*host) error) *host {
	t.Helper()
	l, err := lab.New(lab.Options{NoHostAddr: true, NoBridgeNetfilter: true, WireOffloads: m != xdp, MTU: mtu})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Lab: l, ends: map[string]*end{}, arrived: map[string]<-chan frame{}, tunnel: map[bool]*end{}, mtu: mtu, wireCuts: m == xdp}
	t.Cleanup(func() {
		for _, e := range h.ends {
			e.file.Close()
		}
		for _, e := range h.tunnel {
			e.file.Close()
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := h.build(offloads, mtu); err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		if err := prepare(h); err != nil {
			t.Fatal(err)
		}
	}
	if m != plain {
		h.startDaemon(t, m)
	}
	return h
}

func (h *host) build(offloads bool, mtu int) (err error) {
	for _, port := range []string{sender, receiver} {
		var tunnels bool
		if h.ends[port], tunnels, err = openTap(h.Host, port, offloads || port == sender); err != nil {
			return err
		}
		h.tunnels = h.tunnels || tunnels
		link, err := h.Host.Link(port)
		if err != nil {
			return err
		}
		k := h.Host.Netlink()
		if err := errors.Join(k.LinkSetHardwareAddr(link, tapMAC(port)), k.LinkSetMTU(link, mtu), h.Plug(port)); err != nil {
			return fmt.Errorf("preparing %s: %w", port, err)
		}
	}
	// The outside's GRO would merge what came out of the NIC.
	if err := h.Wire.SetOffload(lab.WireDev, lab.GRO, false); err != nil {
		return err
	}
	if !offloads {
		if err := h.plainNIC(); err != nil {
			return err
		}
	}
	if err := h.makeTunnels(); err != nil {
		return err
	}
	if h.ends[wire], err = openSocket(h.Wire, lab.WireDev); err != nil {
		return err
	}
	for port, s := range stations {
		if err := h.know(port, s.mac); err != nil {
			return err
		}
	}
	if err := h.know(wire, lab.WireMAC); err != nil { // of tunnels
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(h.Host.WaitRunning(ctx, sender), h.Host.WaitRunning(ctx, receiver))
}

// arrivals are the frames that come out at an end.
func (h *host) arrivals(port string) <-chan frame {
	if h.arrived[port] == nil {
		h.arrived[port] = h.ends[port].receive()
	}
	return h.arrived[port]
}

// know puts a static entry into the bridge's table.
func (h *host) know(port string, mac net.HardwareAddr) error {
	index, err := h.Host.Ifindex(port)
	if err != nil {
		return err
	}
	if err := h.Host.Netlink().NeighSet(&netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: mac,
	}); err != nil {
		return fmt.Errorf("adding %s to the bridge's table: %w", mac, err)
	}
	return nil
}

// plainNIC takes all offloads off the NIC's way out.
func (h *host) plainNIC() error {
	return h.Host.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		has, err := e.FeaturesWithState(lab.NIC)
		if err != nil {
			return err
		}
		off := map[string]bool{}
		for name, s := range has {
			if len(name) > 3 && name[:3] == "tx-" && s.Available && !s.NeverChanged {
				off[name] = false
			}
		}
		return e.Change(lab.NIC, off)
	})
}

// makeTunnels makes VXLAN devices on the wire that lead to the receiver: only a
// stack makes frames that are to be segmented inside a tunnel without a tap.
func (h *host) makeTunnels() error {
	if err := h.Wire.SetSysctl("net/ipv6/conf/"+lab.WireDev+"/accept_ra", "0"); err != nil {
		return err
	}
	link, err := h.Wire.Link(lab.WireDev)
	if err != nil {
		return err
	}
	k, to := h.Wire.Netlink(), stations[receiver]
	for _, v6 := range []bool{false, true} {
		name, id, local, remote := "vxlan4", 4, lab.WireAddr4, to.v4
		if v6 {
			name, id, local, remote = "vxlan6", 6, lab.WireAddr6, to.v6
		}
		vxlan := &netlink.Vxlan{
			LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}, VxlanId: id, VtepDevIndex: link.Attrs().Index,
			SrcAddr: local.AsSlice(), Group: remote, Port: vxlanPort, UDP6ZeroCSumTx: true,
		}
		if err := k.LinkAdd(vxlan); err != nil {
			return fmt.Errorf("making %s: %w", name, err)
		}
		if err := errors.Join(h.Wire.SetSysctl("net/ipv6/conf/"+name+"/disable_ipv6", "1"), h.Wire.SetUp(name)); err != nil {
			return err
		}
		if err := k.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: remote, HardwareAddr: to.mac, State: netlink.NUD_PERMANENT,
		}); err != nil {
			return fmt.Errorf("adding a neighbour to the wire: %w", err)
		}
		if h.tunnel[v6], err = openSocket(h.Wire, name); err != nil {
			return err
		}
	}
	return nil
}

// daemons counts them: each has a name of its own.
var daemons atomic.Int32

func (h *host) startDaemon(t *testing.T, m mode) {
	t.Helper()
	config := fmt.Sprintf("uplinks = [%q]\n", lab.NIC)
	if m == xdp {
		config = fmt.Sprintf("%s\npromote = [%q]\n", lab.NICConfig, tapMAC(sender))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d, err := h.Host.StartDaemon(ctx, lab.DaemonOptions{Path: daemonPath, Config: config, Name: fmt.Sprint("matrix", daemons.Add(1))})
	if err != nil {
		t.Fatal(err)
	}
	h.api = control.Dial(d.Socket)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(d.Log())
		}
		h.api.Close()
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// checkFast checks that all ports have the hooks of a mode.
func (h *host) checkFast(t *testing.T, m mode) {
	t.Helper()
	for port := range stations {
		p, want := h.port(t, port), "tcx"
		if m == xdp && p.Name != receiver {
			want = "xdp native + tcx"
		}
		if p.State != control.StateFast || p.Hook != want {
			t.Fatalf("%s is %s by %q, want fast by %q: %v", p.Name, p.State, p.Hook, want, p.Held)
		}
	}
}

// port gives a port as the daemon sees it.
func (h *host) port(t *testing.T, name string) control.Port {
	t.Helper()
	ports, err := h.api.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("the daemon has no port %s", name)
	return control.Port{}
}

// awaitPort waits until a port is as wanted. Nothing tells when the daemon has
// looked around.
func (h *host) awaitPort(t *testing.T, name string, want func(control.Port) bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		p := h.port(t, name)
		if want(p) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is %s by %q: %v", p.Name, p.State, p.Hook, p.Held)
		}
	}
}

// counts are a port's verdicts: at the hook that frames meet first, and at tc
// after XDP. Frames for groups are left out: the tests send none, but stacks do.
type counts struct{ first, merged map[vswitch.Verdict]uint64 }

func (h *host) counts(t *testing.T, port string) counts {
	t.Helper()
	stats, err := h.api.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stats {
		if s.Port != port {
			continue
		}
		c := counts{map[vswitch.Verdict]uint64{}, map[vswitch.Verdict]uint64{}}
		for _, v := range s.Verdicts {
			c.first[v.Verdict] += v.Frames
		}
		for _, v := range s.Merged {
			c.merged[v.Verdict] += v.Frames
		}
		delete(c.first, vswitch.PassGroup)
		delete(c.merged, vswitch.PassGroup)
		return c
	}
	t.Fatalf("%s has no counters", port)
	return counts{}
}

// since gives the verdicts since others, without those on none.
func since(now, before map[vswitch.Verdict]uint64) map[vswitch.Verdict]uint64 {
	d := map[vswitch.Verdict]uint64{}
	for v, n := range now {
		if n -= before[v]; n != 0 {
			d[v] = n
		}
	}
	return d
}

// awaitEntry waits until the fast path has an address at a port.
func (h *host) awaitEntry(t *testing.T, mac net.HardwareAddr, port string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		entries, err := h.api.FDB(ctx, control.FDBFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Port == port && e.MAC == vswitch.MAC(mac) && e.Fast {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}
