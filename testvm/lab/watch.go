package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// WaitUntil waits until check is true of the node. It looks once at the start
// and again after each netlink event about the node's devices, addresses,
// neighbours and FDB entries, and ends with ctx. What it waits for, such as
// "vnet0 is gone", appears in its error only.
func (n *Node) WaitUntil(ctx context.Context, what string, check func(*netlink.Handle) (bool, error)) error {
	events, err := n.openEvents()
	if err != nil {
		return fmt.Errorf("waiting in %s until %s: %w", n.name, what, err)
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.SetReadDeadline(time.Unix(1, 0)) })()
	message := make([]byte, 1<<16)
	for {
		ok, err := check(n.netlink)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			ok, err = false, nil // a change during the dump, which comes as an event too
		}
		if err != nil {
			return fmt.Errorf("waiting in %s until %s: %w", n.name, what, err)
		}
		if ok {
			return nil
		}
		// ENOBUFS says that events were lost: look again, as after any event.
		if _, err := events.Read(message); err != nil && !errors.Is(err, unix.ENOBUFS) {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return fmt.Errorf("waiting in %s until %s: %w", n.name, what, err)
		}
	}
}

// openEvents gives a netlink socket which reads as one message per event.
func (n *Node) openEvents() (*os.File, error) {
	var fd int
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	groups := uint32(0)
	for _, g := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		groups |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribing to netlink events: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// WaitRunning waits until a device is there, up, and has a carrier.
func (n *Node) WaitRunning(ctx context.Context, dev string) error {
	return n.WaitUntil(ctx, dev+" runs", func(h *netlink.Handle) (bool, error) {
		link, err := h.LinkByName(dev)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		const want = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP
		return link.Attrs().RawFlags&want == want, nil
	})
}

// WaitGone waits until the node has no device of this index. Names come back,
// indices don't.
func (n *Node) WaitGone(ctx context.Context, ifindex int) error {
	what := fmt.Sprintf("device %d is gone", ifindex)
	return n.WaitUntil(ctx, what, func(h *netlink.Handle) (bool, error) {
		_, err := h.LinkByIndex(ifindex)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return true, nil
		}
		return false, err
	})
}

// WaitFDB waits until a bridge of the node has learned, or was told, that the
// MAC is behind the port.
func (n *Node) WaitFDB(ctx context.Context, port string, mac net.HardwareAddr) error {
	return n.WaitUntil(ctx, fmt.Sprintf("%v is behind %s", mac, port), func(h *netlink.Handle) (bool, error) {
		return behind(h, port, mac)
	})
}

// WaitNoFDB waits until no bridge of the node has the MAC behind the port.
func (n *Node) WaitNoFDB(ctx context.Context, port string, mac net.HardwareAddr) error {
	return n.WaitUntil(ctx, fmt.Sprintf("%v is no more behind %s", mac, port), func(h *netlink.Handle) (bool, error) {
		there, err := behind(h, port, mac)
		return !there, err
	})
}

// behind says whether the bridge of the port has an FDB entry for the MAC there.
func behind(h *netlink.Handle, port string, mac net.HardwareAddr) (bool, error) {
	link, err := h.LinkByName(port)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	entries, err := h.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		// Entries without a master are the device's own address filter.
		if e.MasterIndex != 0 && e.LinkIndex == link.Attrs().Index && e.HardwareAddr.String() == mac.String() {
			return true, nil
		}
	}
	return false, nil
}
