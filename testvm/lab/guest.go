package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
)

// GuestOptions says how a guest's network device is. The zero value is what
// QEMU gives a guest by default.
type GuestOptions struct {
	// NoOffloads makes both sides send complete frames: with their checksums, and
	// no longer than the MTU. Otherwise they leave both to each other.
	NoOffloads bool
	// MTU in bytes; 0 takes the lab's.
	MTU int
}

// Guest is a machine with a stack of its own behind a tap of the host, as a
// virtual machine is. Its device eth0 is a tap too, and a relay carries the
// frames of either tap to the other with their virtio-net headers.
type Guest struct {
	*Node // where eth0 is

	Port  string           // the host's tap, vnetN
	MAC   net.HardwareAddr // of eth0
	Addr4 netip.Addr
	Addr6 netip.Addr

	index       int
	portIndex   int
	host, guest *Tap
	relay       relay
}

// GuestMAC gives the MAC of the eth0 of a lab's guest number index, from
// 52:54:00:00:00:01 on.
func GuestMAC(index int) net.HardwareAddr {
	index++
	return net.HardwareAddr{0x52, 0x54, 0, 0, byte(index >> 8), byte(index)}
}

// newGuest makes the guest and its tap in the host, which is up afterwards but
// no port of a bridge.
func newGuest(host *Node, index int, opts GuestOptions, ipv6OnPort bool) (*Guest, error) {
	g := &Guest{
		Port:  fmt.Sprintf("vnet%d", index),
		MAC:   GuestMAC(index),
		index: index,
	}
	if err := g.open(host, opts, ipv6OnPort); err != nil {
		g.Close()
		return nil, fmt.Errorf("making guest %d: %w", index, err)
	}
	return g, nil
}

func (g *Guest) open(host *Node, opts GuestOptions, ipv6OnPort bool) error {
	var err error
	if g.Node, err = NewNode(fmt.Sprintf("guest%d", g.index)); err != nil {
		return err
	}
	taps := TapOptions{VnetHdr: true, Offloads: !opts.NoOffloads}
	if g.guest, err = OpenTap(g.Node, "eth0", taps); err != nil {
		return err
	}
	if g.host, err = OpenTap(host, g.Port, taps); err != nil {
		return err
	}
	if g.portIndex, err = host.Ifindex(g.Port); err != nil {
		return err
	}
	if !ipv6OnPort {
		if err := host.disableIPv6(g.Port); err != nil {
			return err
		}
	}
	// A high MAC keeps the bridge from taking it as its own, so libvirt sets it.
	portMAC := append(net.HardwareAddr{0xfe}, g.MAC[1:]...)
	for _, d := range []struct {
		node *Node
		dev  string
		mac  net.HardwareAddr
	}{{g.Node, "eth0", g.MAC}, {host, g.Port, portMAC}} {
		link, err := d.node.Link(d.dev)
		if err != nil {
			return err
		}
		if err := d.node.netlink.LinkSetHardwareAddr(link, d.mac); err != nil {
			return fmt.Errorf("setting the address of %s to %v: %w", d.dev, d.mac, err)
		}
		if err := d.node.netlink.LinkSetMTU(link, opts.MTU); err != nil {
			return fmt.Errorf("setting the MTU of %s to %d: %w", d.dev, opts.MTU, err)
		}
		if err := d.node.SetUp(d.dev); err != nil {
			return err
		}
	}
	g.relay.start(g.host, g.guest)
	return nil
}

// ToGuest counts what the host sent the guest.
func (g *Guest) ToGuest() RelayCounters { return g.relay.toGuest.counters() }

// ToHost counts what the guest sent the host.
func (g *Guest) ToHost() RelayCounters { return g.relay.toHost.counters() }

// PortIfindex gives the index of the host's tap.
func (g *Guest) PortIfindex() int { return g.portIndex }

// Close ends the guest as the end of QEMU ends it: the taps are closed, so the
// kernel removes them. Closing again does nothing.
func (g *Guest) Close() error {
	var errs []error
	for _, t := range []**Tap{&g.host, &g.guest} {
		if *t != nil {
			errs = append(errs, (*t).Close())
			*t = nil
		}
	}
	g.relay.wait()
	if g.Node != nil {
		errs = append(errs, g.Node.Close())
	}
	return errors.Join(errs...)
}

// disableIPv6 keeps a device of the node from having IPv6 addresses and sending
// multicast reports about them.
func (n *Node) disableIPv6(dev string) error {
	err := n.SetSysctl("net/ipv6/conf/"+dev+"/disable_ipv6", "1")
	if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return nil
	}
	return err
}
