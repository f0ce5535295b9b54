package hostbpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clsactPriority is the preference of our filter; its handle and name tell it
// from others'.
const (
	clsactPriority = 0x7473
	clsactHandle   = 1
	clsactName     = "tapswitch_guest_rx"
)

// clsactFilter is a hook for kernels before 6.6, which have no tcx: a bpf filter
// at the device's clsact qdisc. The kernel keeps both while the device lives.
type clsactFilter struct{ ifindex int }

func (f clsactFilter) filter(fd int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: f.ifindex, Parent: netlink.HANDLE_MIN_INGRESS,
			Handle: clsactHandle, Priority: clsactPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: fd, Name: clsactName, DirectAction: true,
	}
}

func clsactQdisc(ifindex int) netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// attachClsact attaches a program by a filter, in a qdisc that may be there already.
func attachClsact(ifindex int, p *ebpf.Program) (hook, error) {
	if err := netlink.QdiscAdd(clsactQdisc(ifindex)); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("adding a clsact qdisc to %s: %w", deviceName(ifindex), err)
	}
	f := clsactFilter{ifindex}
	if err := f.update(p); err != nil {
		return nil, err
	}
	return f, nil
}

// adoptClsact finds our filter on a device and swaps its program; nil if it is
// not there.
func adoptClsact(ifindex int, p *ebpf.Program) (hook, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, err
	}
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == clsactName {
			h := clsactFilter{ifindex}
			return h, h.update(p)
		}
	}
	return nil, nil
}

// removeClsact takes our filters off all devices.
func removeClsact() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("listing devices: %w", err)
	}
	for _, l := range links {
		filters, _ := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS) // none without a qdisc
		for _, f := range filters {
			if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == clsactName {
				err = errors.Join(err, clsactFilter{l.Attrs().Index}.detach())
			}
		}
	}
	return err
}

func (f clsactFilter) update(p *ebpf.Program) error {
	if err := netlink.FilterReplace(f.filter(p.FD())); err != nil {
		return fmt.Errorf("attaching a tc filter to %s: %w", deviceName(f.ifindex), err)
	}
	return nil
}

// detach leaves the qdisc if others use it.
func (f clsactFilter) detach() error {
	l, err := netlink.LinkByIndex(f.ifindex)
	if err != nil {
		return nil // gone, and the filter with it
	}
	if err := netlink.FilterDel(f.filter(-1)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing a tc filter from %s: %w", l.Attrs().Name, err)
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if others, err := netlink.FilterList(l, parent); err != nil || len(others) > 0 {
			return nil
		}
	}
	if err := netlink.QdiscDel(clsactQdisc(f.ifindex)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing the clsact qdisc from %s: %w", l.Attrs().Name, err)
	}
	return nil
}

func (f clsactFilter) close() error { return nil }
func (f clsactFilter) kind() string { return "clsact" }
