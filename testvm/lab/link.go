package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link gives a device of the node by name; an unknown one is
// netlink.LinkNotFoundError.
func (n *Node) Link(dev string) (netlink.Link, error) {
	link, err := n.netlink.LinkByName(dev)
	if err != nil {
		return nil, fmt.Errorf("looking up %s in %s: %w", dev, n.name, err)
	}
	return link, nil
}

// Ifindex gives a device's index.
func (n *Node) Ifindex(dev string) (int, error) {
	link, err := n.Link(dev)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// SetUp brings a device up. It doesn't wait for the device to run; see
// WaitRunning.
func (n *Node) SetUp(dev string) error {
	link, err := n.Link(dev)
	if err != nil {
		return err
	}
	if err := n.netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing %s up in %s: %w", dev, n.name, err)
	}
	return nil
}

// AddAddr gives a device an address with the length of its network. An IPv6
// address is usable at once.
func (n *Node) AddAddr(dev string, prefix netip.Prefix) error {
	link, err := n.Link(dev)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(prefix.String())
	if err != nil {
		return fmt.Errorf("adding an address to %s in %s: %w", dev, n.name, err)
	}
	if prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := n.netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("adding %s to %s in %s: %w", prefix, dev, n.name, err)
	}
	return nil
}

// Addr gives the node's first global IPv4 address, or with v6 its first global
// IPv6 address.
func (n *Node) Addr(v6 bool) (netip.Addr, error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	addrs, err := n.netlink.AddrList(nil, family)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("listing addresses of %s: %w", n.name, err)
	}
	for _, a := range addrs {
		addr, _ := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		if a.Scope == unix.RT_SCOPE_UNIVERSE && !addr.IsLoopback() {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("finding a global address of %s: it has none", n.name)
}
