package hostbpf

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/vishvananda/netlink"
)

// Holds looks for reasons to hold ports back that lie in their devices, and that
// no event tells of: other people's tc programs, NICs that hide tags, and guests
// that were promoted wrongly. It gives them by ifindex; a device that has just gone
// has none. What takes VLAN tags out of frames is switched off where ShowTags allows.
//
// XDP is looked at when a port is attached: nobody can put another program
// beside ours later, and one on a tap runs before our hook as it always did.
func (d *Datapath) Holds(ports map[int]vswitch.Port) (map[int][]vswitch.HoldReason, error) {
	own, err := d.ownPrograms()
	if err != nil {
		return nil, err
	}
	devices := map[int]bool{}
	for ifindex, p := range ports {
		devices[ifindex] = true
		for _, below := range below(ifindex, p) {
			devices[below] = true
		}
	}
	onDevices, err := foreignTC(maps.Keys(devices), own)
	if err != nil {
		return nil, err
	}
	found := map[int][]vswitch.HoldReason{}
	for ifindex, p := range ports {
		found[ifindex] = slices.Clone(onDevices[ifindex])
		var reason *vswitch.HoldReason
		switch p.Role {
		case vswitch.RoleUplink:
			// XDP would go past what is between it and the port.
			for _, below := range below(ifindex, p) {
				for _, r := range onDevices[below] {
					found[ifindex] = append(found[ifindex], withoutXDP("%s", r.Text))
				}
			}
			if p.Carrier.TPID != 0 {
				if r, err := foreignXDP(ifindex); err == nil && r != nil {
					found[ifindex] = append(found[ifindex], withoutXDP("%s", r.Text))
				}
			}
			if err := d.probeTags(ifindex, p); err != nil {
				return nil, err
			}
			reason = d.hiddenTags(ifindex, p)
		case vswitch.RoleGuest:
			if reason, err = d.partialFrames(ifindex); err != nil {
				return nil, err
			}
		}
		if reason != nil {
			found[ifindex] = append(found[ifindex], *reason)
		}
		if len(found[ifindex]) == 0 {
			delete(found, ifindex)
		}
	}
	return found, nil
}

// below gives the devices below a port's own that XDP meets its frames at.
func below(ifindex int, p vswitch.Port) (devices []int) {
	for _, device := range append(p.Carrier.Members[:], p.Carrier.Ifindex) {
		if device != 0 && device != ifindex && !slices.Contains(devices, device) {
			devices = append(devices, device)
		}
	}
	return devices
}

func (d *Datapath) ownPrograms() (map[ebpf.ProgramID]bool, error) {
	own := map[ebpf.ProgramID]bool{}
	for _, p := range []*ebpf.Program{d.programs.UplinkRx, d.programs.GuestRx} {
		info, err := p.Info()
		if err != nil {
			return nil, fmt.Errorf("reading a program's id: %w", err)
		}
		if id, ok := info.ID(); ok {
			own[id] = true
		}
	}
	return own, nil
}

// holdForeign words the reason for a program on a device.
func holdForeign(what string, ifindex int, how string) vswitch.HoldReason {
	name := deviceName(ifindex)
	return vswitch.Hold(vswitch.HoldForeign, "%s of somebody else is on %s; take it off if it is not needed (see '%s %s')", what, name, how, name)
}

// foreignXDP gives the reason to leave a device alone that runs an XDP program.
func foreignXDP(ifindex int) (*vswitch.HoldReason, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, fmt.Errorf("looking at device %d: %w", ifindex, err)
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil, nil
	}
	r := holdForeign(programName("XDP program", ebpf.ProgramID(x.ProgId)), ifindex, "ip link show")
	return &r, nil
}

// foreignTC looks for tcx programs and tc filters in both directions.
func foreignTC(ifindexes iter.Seq[int], own map[ebpf.ProgramID]bool) (map[int][]vswitch.HoldReason, error) {
	classified, err := classifiers()
	if err != nil {
		return nil, err
	}
	found := map[int][]vswitch.HoldReason{}
	for ifindex := range ifindexes {
		what, how := foreignTCX(ifindex, own), "bpftool net show dev"
		if what == "" && classified[ifindex] {
			what, how = foreignFilter(ifindex, own), "tc filter show dev"
		}
		if what != "" {
			found[ifindex] = append(found[ifindex], holdForeign(what, ifindex, how))
		}
	}
	return found, nil
}

// classifiers gives the devices that have a clsact or ingress qdisc, by one
// request for all.
func classifiers() (map[int]bool, error) {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	found := map[int]bool{}
	for _, q := range qdiscs {
		if t := q.Type(); t == "clsact" || t == "ingress" {
			found[q.Attrs().LinkIndex] = true
		}
	}
	return found, nil
}

// foreignTCX names a tcx program that is not ours; empty if there is none.
func foreignTCX(ifindex int, own map[ebpf.ProgramID]bool) string {
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		result, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at})
		if err != nil {
			return "" // before Linux 6.6, or the device is gone
		}
		for _, p := range result.Programs {
			if !own[p.ID] {
				return programName("tcx program", p.ID)
			}
		}
	}
	return ""
}

// foreignFilter names a tc filter that is not ours; empty if there is none.
func foreignFilter(ifindex int, own map[ebpf.ProgramID]bool) string {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return ""
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(l, parent)
		if err != nil {
			return ""
		}
		for _, f := range filters {
			if bpf, ok := f.(*netlink.BpfFilter); !ok || !own[ebpf.ProgramID(bpf.Id)] {
				return "tc " + f.Type() + " filter"
			}
		}
	}
	return ""
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

// deviceThere says whether a device exists in this network namespace.
func deviceThere(ifindex int) bool {
	_, err := netlink.LinkByIndex(ifindex)
	return !errors.As(err, &netlink.LinkNotFoundError{})
}

// deviceName gives a device's name for people, or its number if it is gone.
func deviceName(ifindex int) string {
	if l, err := netlink.LinkByIndex(ifindex); err == nil {
		return l.Attrs().Name
	}
	return "device " + strconv.Itoa(ifindex)
}
