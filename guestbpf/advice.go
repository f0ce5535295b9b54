package guestbpf

import (
	"fmt"
	"strings"
)

// A Finding is something about a device that a person can act on.
type Finding struct {
	// Problem says that native XDP does not work because of it; otherwise it works worse.
	Problem bool   `json:"problem"`
	Text    string `json:"text"`
	Fix     string `json:"fix,omitempty"`
}

// advise says what is wrong with a device, and what to change.
func advise(f Facts) []Finding {
	found := []Finding{}
	add := func(problem bool, fix, format string, args ...any) {
		found = append(found, Finding{problem, fmt.Sprintf(format, args...), fix})
	}
	if f.Refusal != "" {
		add(true, fixRefusal(f), "native XDP does not attach: %s", f.Refusal)
	}
	if f.Attached && f.Program == "" {
		add(true, "attach it again; 'tapswitch-guest status' says what it was",
			"the program that was attached is gone from the device, as after a suspend and resume")
	}
	if !f.Attached && f.Program != "" {
		add(false, fmt.Sprintf("take it off if it is not needed (see 'ip link show %s')", f.Device),
			"an XDP program of somebody else is on it: %s", f.Program)
	}
	if n := f.missingQueues(); n > 0 && f.Refusal == "" {
		add(false, fixQueues(f), "XDP_TX and XDP_REDIRECT share queues with the stack, under a lock: "+
			"%d queue pairs are in use, each of %d CPUs wants one, and there are %d", f.Queues, f.CPUs, f.MaxQueues)
	}
	if f.RxVLAN {
		add(false, fmt.Sprintf("ethtool -K %s rxvlan off", f.Device), "VLAN tags are taken out before XDP: l3fwd refuses the device")
	}
	if f.LRO {
		add(false, fmt.Sprintf("ethtool -K %s lro off", f.Device), "frames are merged (LRO) before XDP, unless the driver switches that off itself")
	}
	if v, ok := parseRelease(f.Kernel); ok && f.Virtio != nil {
		for _, fault := range faults {
			if fault.concerns(f) && fault.affects(v) {
				add(false, fault.fix, "your kernel's version suggests it is affected: %s", fault.text)
			}
		}
	}
	return found
}

// missingQueues is how many queue pairs native XDP lacks. Once a program is on the
// device its own are among those in use, so that it can't be told.
func (f *Facts) missingQueues() int {
	if f.Virtio == nil || f.MaxQueues == 0 || f.Program != "" {
		return 0
	}
	return max(0, f.Queues+f.CPUs-f.MaxQueues)
}

func fixQueues(f Facts) string {
	fix := fmt.Sprintf("in the interface's XML: <driver name='vhost' queues='%d'/>", 2*f.CPUs)
	if left := f.MaxQueues - f.CPUs; left > 0 {
		fix += fmt.Sprintf("; or leave fewer to the stack: ethtool -L %s combined %d", f.Device, left)
	}
	return fix
}

// fixRefusal says what to change about a device whose driver takes no program.
func fixRefusal(f Facts) string {
	switch v := f.Virtio; {
	case strings.Contains(f.Refusal, "MTU"):
		return fmt.Sprintf("ip link set %s mtu 1500, and <mtu size='1500'/> in the interface's XML: without frags, which these programs "+
			"don't take, virtio_net allows 3506 (4064 with Linux 6.1, 4080 with 5.10)", f.Device)
	case v == nil:
		return "in the interface's XML: <model type='virtio'/>"
	case v.Mergeable && !v.AnyLayout:
		return "give the guest a current machine type in its XML, <type machine='q35'>, and the interface <model type='virtio'/>: " +
			"this device speaks the protocol before virtio 1.0"
	case !v.ControlsOffloads && len(v.GuestOffloads) > 0:
		off := ""
		for _, o := range v.GuestOffloads {
			if !strings.HasPrefix(o, "uso") {
				off += " " + o + "='off'"
			}
		}
		return "in the interface's XML: <driver><guest" + off + "/></driver>"
	case f.missingQueues() > 0: // before Linux 5.13
		return fixQueues(f)
	}
	return ""
}
