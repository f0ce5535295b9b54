package uplink

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tapswitch/tapswitch/tools/livegen"
	"github.com/tapswitch/tapswitch/tools/tapsink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// The sender and the reader each have a CPU.
	senderCPU = 0
	readerCPU = 1

	// queueLen lets a tap's queue hold a whole burst and another.
	queueLen = 2 * livegen.MinBurst
)

// A host is a bridge with a NIC, which is one end of a veth pair, and taps.
type host struct {
	bridge, nic netlink.Link
	sink        *tapsink.Sink
}

func newHost(taps int) (_ *host, err error) {
	h := &host{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if err := silenceIPv6(); err != nil {
		return nil, err
	}
	// A bridge that snoops sends IGMP reports of its own, which would be counted.
	// What unicast frames cost does not depend on it.
	snooping := false
	if h.bridge, err = addLink(&netlink.Bridge{LinkAttrs: named("br0"), MulticastSnooping: &snooping}); err != nil {
		return nil, err
	}
	if h.nic, err = addLink(&netlink.Veth{LinkAttrs: named("nic0"), PeerName: "wire0"}); err != nil {
		return nil, err
	}
	wire, err := netlink.LinkByName("wire0")
	if err == nil {
		err = netlink.LinkSetUp(wire)
	}
	if err != nil {
		return nil, fmt.Errorf("setting up wire0, the other end of nic0: %w", err)
	}
	name := func(i int) string { return fmt.Sprintf("vnet%d", i) }
	h.sink, err = tapsink.Open(tapsink.Options{Taps: taps, Name: name, QueueLen: queueLen, CPU: readerCPU})
	if err != nil {
		return nil, err
	}
	if err := h.enslave("nic0", h.nic.Attrs().Index); err != nil {
		return nil, err
	}
	for _, tap := range h.sink.Taps() {
		if err := h.enslave(tap.Name, tap.Ifindex); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// addLink makes a device, sets it up, and gives it as it came out.
func addLink(l netlink.Link) (netlink.Link, error) {
	name := l.Attrs().Name
	if err := netlink.LinkAdd(l); err != nil {
		return nil, fmt.Errorf("making %s %s: %w", l.Type(), name, err)
	}
	made, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(made)
	}
	if err != nil {
		return nil, fmt.Errorf("setting up %s: %w", name, err)
	}
	return made, nil
}

// silenceIPv6 keeps the stack from sending frames of its own, which would be
// counted.
func silenceIPv6() error {
	for _, which := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("switching IPv6 off: %w", err)
		}
	}
	return nil
}

// enslave puts a device on the bridge and waits until it forwards.
func (h *host) enslave(name string, ifindex int) error {
	if err := netlink.LinkSetMasterByIndex(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}, h.bridge.Attrs().Index); err != nil {
		return fmt.Errorf("putting %s on br0: %w", name, err)
	}
	const forwarding = "3" // BR_STATE_FORWARDING
	deadline := time.Now().Add(5 * time.Second)
	for {
		state, err := os.ReadFile("/sys/class/net/" + name + "/brport/state")
		if err != nil {
			return fmt.Errorf("reading the bridge port state of %s: %w", name, err)
		}
		if state = bytes.TrimSpace(state); string(state) == forwarding {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting until %s forwards: it is in state %s after 5 s", name, state)
		}
		time.Sleep(time.Millisecond)
	}
}

// addStation tells the bridge that a guest with this address is behind a tap.
func (h *host) addStation(mac [6]byte, tap tapsink.Tap) error {
	entry := &netlink.Neigh{
		LinkIndex: tap.Ifindex, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER,
		State: netlink.NUD_NOARP, HardwareAddr: mac[:], // "static" to bridge(8)
	}
	if err := netlink.NeighSet(entry); err != nil {
		return fmt.Errorf("adding a static FDB entry for %s: %w", tap.Name, err)
	}
	return nil
}

func (h *host) close() (err error) {
	if h.sink != nil {
		err = h.sink.Close()
	}
	for _, l := range []netlink.Link{h.nic, h.bridge} {
		if l == nil {
			continue
		}
		if e := netlink.LinkDel(l); e != nil {
			err = errors.Join(err, fmt.Errorf("removing %s: %w", l.Attrs().Name, e))
		}
	}
	return err
}
