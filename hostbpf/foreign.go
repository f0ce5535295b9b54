package hostbpf

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/vishvananda/netlink"
)

// foreign looks for programs of somebody else on a device: XDP, tcx, or tc
// filters. own are the ids of our programs. It gives nil if there are none.
//
// Any of them holds the port back in both directions: the fast path would go
// past what it does to a frame.
func foreign(ifindex int, own map[ebpf.ProgramID]bool) (*vswitch.HoldReason, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, fmt.Errorf("looking at device %d: %w", ifindex, err)
	}
	attrs := l.Attrs()
	hold := func(what, how string, args ...any) *vswitch.HoldReason {
		r := vswitch.Hold(vswitch.HoldForeign, "%s is on %s; take it off (%s) if it is not needed",
			what, attrs.Name, fmt.Sprintf(how, args...))
		return &r
	}
	if x := attrs.Xdp; x != nil && x.Attached && !own[ebpf.ProgramID(x.ProgId)] {
		return hold(programName("XDP program", ebpf.ProgramID(x.ProgId)), "ip link set dev %s xdp off", attrs.Name), nil
	}
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		result, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at})
		if errors.Is(err, ebpf.ErrNotSupported) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("asking for the tcx programs of %s: %w", attrs.Name, err)
		}
		for _, p := range result.Programs {
			if !own[p.ID] {
				return hold(programName("tcx program", p.ID), "bpftool net show dev %s", attrs.Name), nil
			}
		}
	}
	return foreignFilter(l, own, hold)
}

// foreignFilter looks for tc filters at a device's clsact or ingress qdisc.
func foreignFilter(l netlink.Link, own map[ebpf.ProgramID]bool, hold func(string, string, ...any) *vswitch.HoldReason) (*vswitch.HoldReason, error) {
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return nil, fmt.Errorf("listing the qdiscs of %s: %w", l.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		if q.Type() != "clsact" && q.Type() != "ingress" {
			continue
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(l, parent)
			if err != nil {
				return nil, fmt.Errorf("listing the filters of %s: %w", l.Attrs().Name, err)
			}
			for _, f := range filters {
				if bpf, ok := f.(*netlink.BpfFilter); !ok || !own[ebpf.ProgramID(bpf.Id)] {
					return hold("a tc "+f.Type()+" filter", "tc filter show dev %s ingress", l.Attrs().Name), nil
				}
			}
		}
	}
	return nil, nil
}

// programName describes a program for people.
func programName(what string, id ebpf.ProgramID) string {
	what += " " + strconv.Itoa(int(id))
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return what
	}
	defer p.Close()
	if info, err := p.Info(); err == nil && info.Name != "" {
		what += " (" + info.Name + ")"
	}
	return what
}

// deviceName gives a device's name for people, or its number if it is gone.
func deviceName(ifindex int) string {
	if l, err := netlink.LinkByIndex(ifindex); err == nil {
		return l.Attrs().Name
	}
	return "device " + strconv.Itoa(ifindex)
}
