package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The names of a lab's devices. Guests' taps in the host are called vnet0,
// vnet1, … and their own devices eth0.
const (
	WireDev   = "wire0" // in Lab.Wire
	NIC       = "nic0"  // in Lab.Host, the other end of WireDev
	BridgeDev = "br0"   // in Lab.Host
)

// The addresses of a lab, out of the networks that are set apart for
// benchmarks and for documentation.
var (
	WireAddr4 = netip.MustParseAddr("198.18.0.1")
	WireAddr6 = netip.MustParseAddr("2001:db8::1")
	HostAddr4 = netip.MustParseAddr("198.18.0.2")
	HostAddr6 = netip.MustParseAddr("2001:db8::2")

	WireMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	NICMAC  = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x02} // which the bridge takes as its own
)

const (
	defaultMTU  = 1500
	maxGuests   = 200              // as many as the last byte of an IPv4 address has room for
	readyWithin = 10 * time.Second // for devices which take milliseconds
)

// GuestAddrs gives the addresses of a lab's guest number index, from 198.18.0.11
// and 2001:db8::11 on.
func GuestAddrs(index int) (v4, v6 netip.Addr) {
	v4 = netip.AddrFrom4([4]byte{198, 18, 0, byte(11 + index)})
	b := netip.MustParseAddr("2001:db8::").As16()
	b[15] = byte(0x11 + index)
	return v4, netip.AddrFrom16(b)
}

// Options says what a lab is like. The zero value is a wire and a host without
// guests.
type Options struct {
	// Guests is the number of guests to begin with, at most 200.
	Guests int
	// Guest is what they are like.
	Guest GuestOptions
	// MTU of all devices in bytes; 0 means 1500.
	MTU int
	// AgeingTime of the bridge's learned addresses, in steps of 10 ms; 0 means the
	// kernel's default, 300 s.
	AgeingTime time.Duration
	// VLANFiltering turns on the bridge's VLAN filter. All ports are in VLAN 1,
	// untagged, to begin with. New fails with errors.ErrUnsupported on a kernel
	// without CONFIG_BRIDGE_VLAN_FILTERING.
	VLANFiltering bool
	// NoBridgeNetfilter keeps iptables, ip6tables and arptables off bridged frames.
	// Where br_netfilter is, the kernel's default is to run them.
	NoBridgeNetfilter bool
	// NoHostAddr leaves the host itself without addresses on the bridge.
	NoHostAddr bool
	// HostIPv6 leaves IPv6 as the kernel has it on the host's NIC and taps, which
	// then get link-local addresses and send multicast reports. Without it, only
	// the bridge has IPv6, and only if it has an address.
	HostIPv6 bool
	// NICGRO turns on GRO on the host's NIC, as drivers of real NICs have it. The
	// kernel's default for a veth is off until it gets an XDP program, which then
	// makes bulk TCP through the plain bridge several times faster: set NICGRO to
	// compare like with like.
	NICGRO bool
	// WireOffloads lets the outside station send what no wire carries: frames
	// without checksum, and TCP segments of up to 64 KiB.
	WireOffloads bool
}

// Lab is a host with a bridge, guests behind the bridge, and an outside station
// on the wire behind the host's NIC:
//
//	Wire              Host                            Guest
//	wire0 ─── veth ── nic0 ── br0 ── vnet0 ── relay ── eth0
//
// STP is off and ports forward at once. The NIC is a veth whose outside end
// behaves as a wire does: frames on it are complete (see Options.WireOffloads),
// and it has GRO, as a real station does and as a veth needs to be a target of
// XDP redirects.
type Lab struct {
	Wire *Node
	Host *Node
	// Guests is changed by AddGuest and RemoveGuest, which therefore must not be
	// called at the same time as others that use it.
	Guests []*Guest

	opts Options
}

// New builds a lab. Its devices run when it returns. If it fails, nothing is
// left.
func New(opts Options) (*Lab, error) {
	if opts.MTU == 0 {
		opts.MTU = defaultMTU
	}
	l := &Lab{opts: opts}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("building the lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build() error {
	var err error
	if l.Wire, err = NewNode("wire"); err != nil {
		return err
	}
	if l.Host, err = NewNode("host"); err != nil {
		return err
	}
	if err := l.setBridgeNetfilter(); err != nil {
		return err
	}
	if err := l.makeWire(); err != nil {
		return err
	}
	if err := l.makeBridge(); err != nil {
		return err
	}
	for range l.opts.Guests {
		if _, err := l.AddGuest(l.opts.Guest); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	return errors.Join(
		l.Wire.WaitRunning(ctx, WireDev),
		l.Host.WaitRunning(ctx, NIC),
		l.Host.WaitRunning(ctx, BridgeDev))
}

func (l *Lab) setBridgeNetfilter() error {
	if !l.opts.NoBridgeNetfilter {
		return nil
	}
	for _, table := range []string{"iptables", "ip6tables", "arptables"} {
		err := l.Host.SetSysctl("net/bridge/bridge-nf-call-"+table, "0")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // no br_netfilter: off already
			return err
		}
	}
	return nil
}

func (l *Lab) makeWire() error {
	veth := netlink.NewVeth(netlink.LinkAttrs{
		Name:         WireDev,
		MTU:          l.opts.MTU,
		TxQLen:       -1,
		HardwareAddr: WireMAC,
	})
	veth.PeerName = NIC
	veth.PeerHardwareAddr = NICMAC
	veth.PeerNamespace = netlink.NsFd(l.Host.NetNS())
	veth.PeerMTU = uint32(l.opts.MTU)
	if err := l.Wire.netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("making %s and %s: %w", WireDev, NIC, err)
	}
	if !l.opts.WireOffloads {
		for _, o := range []Offload{TSO, GSO, TxChecksum, TxVLAN} {
			if err := l.Wire.SetOffload(WireDev, o, false); err != nil {
				return err
			}
		}
	}
	if err := l.Wire.SetOffload(WireDev, GRO, true); err != nil {
		return err
	}
	for _, addr := range []netip.Addr{WireAddr4, WireAddr6} {
		if err := l.Wire.AddAddr(WireDev, onLink(addr)); err != nil {
			return err
		}
	}
	return l.Wire.SetUp(WireDev)
}

func (l *Lab) makeBridge() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: BridgeDev, MTU: l.opts.MTU, TxQLen: -1}}
	if l.opts.AgeingTime != 0 {
		ticks := uint32(l.opts.AgeingTime / (10 * time.Millisecond)) // USER_HZ
		bridge.AgeingTime = &ticks
	}
	if l.opts.VLANFiltering {
		bridge.VlanFiltering = &l.opts.VLANFiltering
	}
	if err := l.Host.netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("making %s: %w", BridgeDev, err)
	}
	if err := l.Host.SetForwardDelay(BridgeDev, 0); err != nil {
		return err
	}
	if !l.opts.HostIPv6 {
		if err := l.Host.disableIPv6(NIC); err != nil {
			return err
		}
		if l.opts.NoHostAddr {
			if err := l.Host.disableIPv6(BridgeDev); err != nil {
				return err
			}
		}
	}
	// XDP would not see tags that the NIC has taken out.
	if err := l.Host.SetOffload(NIC, RxVLAN, false); err != nil {
		return err
	}
	if l.opts.NICGRO {
		if err := l.Host.SetOffload(NIC, GRO, true); err != nil {
			return err
		}
	}
	if err := l.Host.SetUp(BridgeDev); err != nil {
		return err
	}
	if err := l.Plug(NIC); err != nil {
		return err
	}
	if l.opts.NoHostAddr {
		return nil
	}
	for _, addr := range []netip.Addr{HostAddr4, HostAddr6} {
		if err := l.Host.AddAddr(BridgeDev, onLink(addr)); err != nil {
			return err
		}
	}
	return nil
}

// SetForwardDelay sets how long a bridge's new ports wait before they forward,
// also without STP. The netlink package has no attribute for it.
func (n *Node) SetForwardDelay(bridge string, ticks uint32) error {
	index, err := n.Ifindex(bridge)
	if err != nil {
		return err
	}
	err = n.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = int32(index)
		req.AddData(msg)
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
		data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
		data.AddRtAttr(nl.IFLA_BR_FORWARD_DELAY, nl.Uint32Attr(ticks))
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("setting the forward delay of %s: %w", bridge, err)
	}
	return nil
}

// Plug makes a device of the host a port of the bridge and brings it up.
func (l *Lab) Plug(dev string) error {
	bridge, err := l.Host.Link(BridgeDev)
	if err != nil {
		return err
	}
	link, err := l.Host.Link(dev)
	if err != nil {
		return err
	}
	if err := l.Host.netlink.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("plugging %s into %s: %w", dev, BridgeDev, err)
	}
	return l.Host.SetUp(dev)
}

// AddGuest adds a guest with the lowest number that is free, as libvirt numbers
// taps, so a removed guest's names and addresses come back (but not its
// ifindex). Its devices run when AddGuest returns.
func (l *Lab) AddGuest(opts GuestOptions) (*Guest, error) {
	index := 0
	for taken := true; taken; {
		taken = false
		for _, g := range l.Guests {
			if g.index == index {
				taken = true
				index++
			}
		}
	}
	if index >= maxGuests {
		return nil, fmt.Errorf("adding a guest: there are %d already", maxGuests)
	}
	if opts.MTU == 0 {
		opts.MTU = l.opts.MTU
	}
	g, err := newGuest(l.Host, index, opts, l.opts.HostIPv6)
	if err != nil {
		return nil, err
	}
	if err := l.connect(g); err != nil {
		return nil, errors.Join(fmt.Errorf("adding guest %d: %w", index, err), g.Close())
	}
	l.Guests = append(l.Guests, g)
	return g, nil
}

// connect gives the guest its addresses and plugs it into the bridge.
func (l *Lab) connect(g *Guest) error {
	g.Addr4, g.Addr6 = GuestAddrs(g.index)
	for _, addr := range []netip.Addr{g.Addr4, g.Addr6} {
		if err := g.AddAddr("eth0", onLink(addr)); err != nil {
			return err
		}
	}
	if err := l.Plug(g.Port); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	return errors.Join(g.WaitRunning(ctx, "eth0"), l.Host.WaitRunning(ctx, g.Port))
}

// RemoveGuest ends a guest. Its tap is gone from the host, and so from the
// bridge, when it returns.
func (l *Lab) RemoveGuest(g *Guest) error {
	for i, other := range l.Guests {
		if other == g {
			l.Guests = append(l.Guests[:i:i], l.Guests[i+1:]...)
			return g.Close()
		}
	}
	return fmt.Errorf("removing guest %d: it is not in the lab", g.index)
}

// onLink gives the address with the length of the lab's network.
func onLink(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(addr, 24)
	}
	return netip.PrefixFrom(addr, 64)
}

// Close ends all guests and removes the host and the wire. Closing again does
// nothing.
func (l *Lab) Close() error {
	var errs []error
	for _, g := range l.Guests {
		errs = append(errs, g.Close())
	}
	l.Guests = nil
	for _, n := range []**Node{&l.Host, &l.Wire} {
		if *n != nil {
			errs = append(errs, (*n).Close())
			*n = nil
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the lab: %w", err)
	}
	return nil
}
