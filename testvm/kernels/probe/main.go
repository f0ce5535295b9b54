// Command probe finds out, in a guest, what its kernel can do for the datapath, and
// prints it as JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/testvm/kernels/feature"
	"github.com/tapswitch/tapswitch/vswitch"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run() error {
	d, err := makeDevices()
	if err != nil {
		return err
	}
	var found []feature.Feature
	add := func(name, value string) { found = append(found, feature.Feature{Name: name, Value: value}) }
	dp, err := hostbpf.Open(hostbpf.Options{})
	if err != nil {
		add("the datapath loads", "no")
		fmt.Fprintln(os.Stderr, "probe:", err)
	} else {
		defer dp.Close(false)
		add("the datapath loads", "yes")
		for _, p := range []struct {
			name string
			link netlink.Link
			role vswitch.Role
		}{
			{"uplink on veth", d.veth, vswitch.RoleUplink},
			{"uplink on virtio_net", d.virtio, vswitch.RoleUplink},
			{"guest on tap, promoted", d.tap, vswitch.RoleGuest},
		} {
			add(p.name, hooks(dp, p.link, p.role))
		}
		add("losses are counted", yes(dp.AttachLossCounters()))
	}
	add("tcx", yes(tcx(d.bond)))
	add("native XDP on a bond", yes(nativeXDP(d.bond, 0)))
	add("xdp.frags", yes(load(unix.BPF_F_XDP_HAS_FRAGS)))
	add("native XDP on veth, MTU 9000", mtu9000())
	add("DEVMAP_HASH", yes(features.HaveMapType(ebpf.DevMapHash)))
	add("bridge with VLAN filtering", yes(vlanFiltering(d.bridge)))
	return json.NewEncoder(os.Stdout).Encode(found)
}

// yes says whether there was no error. What the error was goes to stderr.
func yes(err error) string {
	if err == nil {
		return "yes"
	}
	fmt.Fprintln(os.Stderr, "probe:", err)
	return "no"
}

type devices struct{ veth, tap, bond, bridge, virtio netlink.Link }

func makeDevices() (d devices, err error) {
	name := func(n string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = n
		return a
	}
	bond := netlink.NewLinkBond(name("bond7"))
	bond.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
	for _, m := range []struct {
		link netlink.Link
		to   *netlink.Link
	}{
		{&netlink.Veth{LinkAttrs: name("veth7"), PeerName: "peer7"}, &d.veth},
		{&netlink.Tuntap{LinkAttrs: name("tap7"), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_DEFAULTS}, &d.tap},
		{bond, &d.bond},
		{&netlink.Bridge{LinkAttrs: name("br7")}, &d.bridge},
	} {
		if err := netlink.LinkAdd(m.link); err != nil {
			return d, fmt.Errorf("making %s: %w", m.link.Attrs().Name, err)
		}
		if *m.to, err = netlink.LinkByName(m.link.Attrs().Name); err != nil {
			return d, err
		}
		if err := netlink.LinkSetUp(*m.to); err != nil {
			return d, fmt.Errorf("setting %s up: %w", m.link.Attrs().Name, err)
		}
	}
	if d.virtio, err = netlink.LinkByName("eth0"); err != nil {
		return d, fmt.Errorf("finding the guest's NIC: %w", err)
	}
	return d, netlink.LinkSetUp(d.virtio)
}

// hooks says by what the datapath has been attached to a device.
func hooks(dp *hostbpf.Datapath, l netlink.Link, role vswitch.Role) string {
	err := dp.SetPort(vswitch.PortConfig{
		Ifindex: l.Attrs().Index, Bridge: 1000, Role: role, Attach: true, XDP: true, In: true, Out: true, MaxFrame: 1514,
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "probe: %s: %v\n", l.Attrs().Name, err)
	}
	kinds := strings.Join(dp.Hooks(l.Attrs().Index), ", ")
	if kinds == "" {
		return "no"
	}
	return kinds
}

func pass(typ ebpf.ProgramType, flags uint32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: typ, Flags: flags, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
}

func load(flags uint32) error {
	p, err := pass(ebpf.XDP, flags)
	if err != nil {
		return err
	}
	return p.Close()
}

func tcx(l netlink.Link) error {
	p, err := pass(ebpf.SchedCLS, 0)
	if err != nil {
		return err
	}
	defer p.Close()
	attached, err := link.AttachTCX(link.TCXOptions{Program: p, Interface: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return err
	}
	return attached.Close()
}

func nativeXDP(l netlink.Link, flags uint32) error {
	p, err := pass(ebpf.XDP, flags)
	if err != nil {
		return err
	}
	defer p.Close()
	attached, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("%s: %w", l.Attrs().Name, err)
	}
	return attached.Close()
}

func vlanFiltering(bridge netlink.Link) error {
	path := filepath.Join("/sys/class/net", bridge.Attrs().Name, "bridge/vlan_filtering")
	return os.WriteFile(path, []byte("1"), 0)
}

// mtu9000 says which programs a veth of this MTU takes.
func mtu9000() string {
	fresh := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "peer8"}
	fresh.Name = "veth8"
	if err := errors.Join(netlink.LinkAdd(fresh), netlink.LinkSetMTU(fresh, 9000)); err != nil {
		return yes(err)
	}
	peer, err := netlink.LinkByName("peer8")
	if err != nil {
		return yes(err)
	}
	// The limit comes from the peer's MTU, whose frames the program would see.
	if err := netlink.LinkSetMTU(peer, 9000); err != nil {
		return yes(err)
	}
	switch {
	case nativeXDP(fresh, 0) == nil:
		return "yes"
	case nativeXDP(fresh, unix.BPF_F_XDP_HAS_FRAGS) == nil:
		return "with frags"
	}
	return "no"
}
