package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// The devices of a wire that Join has made, in Lab.Wire.
const (
	JoinedDev = "wirebr0" // a bridge, which has the wire's addresses
	OtherDev  = "wire1"   // the far end of the other lab's NIC
)

// otherNICMAC is the address that the other lab's NIC gets, and its bridge takes.
var otherNICMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x03}

// Join makes one wire of the lab's and another's, so that two hosts are on it, with
// the lab's station and no other. It is a bridge that forwards at once:
//
//	Host ── nic0 ── wire0 ─┬─ wirebr0 (Wire) ─┬─ wire1 ── nic0 ── Host
//	                       │                  │
//
// Both hosts have the same IP addresses unless one has Options.NoHostAddr, and so have
// guests of the same number.
func (l *Lab) Join(other *Lab) error {
	if err := l.join(other); err != nil {
		return fmt.Errorf("joining two labs: %w", err)
	}
	return nil
}

func (l *Lab) join(other *Lab) error {
	nic, err := other.Host.Link(NIC)
	if err != nil {
		return err
	}
	if err := other.Host.netlink.LinkSetHardwareAddr(nic, otherNICMAC); err != nil {
		return err
	}
	far, err := other.Wire.Link(WireDev)
	if err != nil {
		return err
	}
	n := other.Wire.netlink
	if err := errors.Join(n.LinkSetDown(far), n.LinkSetName(far, OtherDev), n.LinkSetNsFd(far, l.Wire.NetNS())); err != nil {
		return err
	}
	if err := other.Wire.Close(); err != nil {
		return err
	}
	other.Wire = l.Wire
	n = l.Wire.netlink
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: JoinedDev, MTU: l.opts.MTU, TxQLen: -1, HardwareAddr: append(net.HardwareAddr{}, WireMAC...)}}
	if err := n.LinkAdd(bridge); err != nil {
		return err
	}
	if err := l.Wire.SetForwardDelay(JoinedDev, 0); err != nil {
		return err
	}
	if err := l.Wire.SetUp(JoinedDev); err != nil {
		return err
	}
	for _, dev := range []string{WireDev, OtherDev} {
		port, err := l.Wire.Link(dev)
		if err != nil {
			return err
		}
		if err := n.LinkSetMaster(port, bridge); err != nil {
			return err
		}
		if err := l.Wire.SetUp(dev); err != nil {
			return err
		}
	}
	for _, addr := range []netip.Addr{WireAddr4, WireAddr6} {
		if err := l.Wire.moveAddr(onLink(addr), WireDev, JoinedDev); err != nil {
			return err
		}
	}
	return nil
}

// moveAddr takes an address from a device and gives it to another.
func (n *Node) moveAddr(prefix netip.Prefix, from, to string) error {
	link, err := n.Link(from)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(prefix.String())
	if err != nil {
		return err
	}
	if err := n.netlink.AddrDel(link, addr); err != nil {
		return fmt.Errorf("taking %s from %s: %w", prefix, from, err)
	}
	return n.AddAddr(to, prefix)
}
