package guestpath

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/guestbpf"
	"github.com/tapswitch/tapswitch/tools/livegen"
	"github.com/tapswitch/tapswitch/tools/tapsink"
)

const (
	inDev, outDev = "eth0", "eth1"

	// The sender and the reader each have a CPU.
	senderCPU = 0
	readerCPU = 1
)

var (
	inMAC   = [6]byte{2, 0, 0, 0, 0, 1}
	fromMAC = [6]byte{2, 0, 0, 0, 0, 2}
	toMAC   = [6]byte{2, 0, 0, 0, 0, 3}
)

// A router is a guest that forwards from eth0, where 198.18.0.1 is, to eth1, where
// 198.19.0.1 is.
type router struct {
	in    netlink.Link
	sink  *tapsink.Sink
	guest guestbpf.Guest
}

func newRouter() (_ *router, err error) {
	r := &router{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	for name, value := range map[string]string{
		"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1", // it would send frames of its own
		"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	a := netlink.NewLinkAttrs()
	a.Name, a.HardwareAddr = inDev, inMAC[:]
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "far0"}); err != nil {
		return nil, fmt.Errorf("making %s: %w", inDev, err)
	}
	if r.in, err = netlink.LinkByName(inDev); err != nil {
		return nil, fmt.Errorf("looking for %s: %w", inDev, err)
	}
	if r.sink, err = tapsink.Open(tapsink.Options{Name: func(int) string { return outDev }, QueueLen: 2 * livegen.MinBurst, CPU: readerCPU}); err != nil {
		return nil, err
	}
	return r, r.connect()
}

// connect sets the devices up, with a route and a neighbour on each.
func (r *router) connect() error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("opening ethtool: %w", err)
	}
	defer e.Close()
	if err := e.Change(inDev, map[string]bool{"rx-vlan-hw-parse": false}); err != nil {
		return fmt.Errorf("switching rxvlan of %s off: %w", inDev, err)
	}
	for _, name := range []string{inDev, "far0", outDev} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("setting %s up: %w", name, err)
		}
	}
	for _, end := range []struct {
		ifindex int
		own     string
		station string
		mac     [6]byte
	}{
		{r.in.Attrs().Index, "198.18.1.1/32", "198.18.0.1", fromMAC},
		{r.sink.Taps()[0].Ifindex, "198.19.1.1/32", "198.19.0.1", toMAC},
	} {
		own, err := netlink.ParseAddr(end.own)
		if err != nil {
			return err
		}
		l, err := netlink.LinkByIndex(end.ifindex)
		if err != nil {
			return fmt.Errorf("looking for device %d: %w", end.ifindex, err)
		}
		station := net.ParseIP(end.station).To4()
		err = errors.Join(
			netlink.AddrAdd(l, own),
			netlink.RouteAdd(&netlink.Route{
				LinkIndex: end.ifindex, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: station, Mask: net.CIDRMask(32, 32)},
			}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: end.ifindex, IP: station, HardwareAddr: end.mac[:], State: netlink.NUD_PERMANENT}),
		)
		if err != nil {
			return fmt.Errorf("setting up the way to %s: %w", end.station, err)
		}
	}
	return nil
}

// attached gives the program that is on eth0.
func (r *router) attached() (*ebpf.Program, error) {
	pin := filepath.Join(guestbpf.DefaultPins, strconv.Itoa(r.in.Attrs().Index), "link")
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return nil, fmt.Errorf("opening what is attached to %s: %w", inDev, err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return nil, fmt.Errorf("reading what is attached to %s: %w", inDev, err)
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return nil, fmt.Errorf("opening the program of %s: %w", inDev, err)
	}
	return p, nil
}

func (r *router) close() (err error) {
	if r.sink != nil {
		err = r.sink.Close()
	}
	if r.in != nil {
		err = errors.Join(err, netlink.LinkDel(r.in))
	}
	return err
}
