package control

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A Drop counts frames that were lost on the way out of a port: those that the
// datapath sent to it, or all.
type Drop struct {
	Port    string `json:"port"` // that the frames were to leave by
	Ifindex int    `json:"ifindex"`
	Reason  string `json:"reason"`
	Errno   int    `json:"errno"` // positive; 0 if the kernel gave none
	Frames  uint64 `json:"frames"`
	// Shared says that the kernel does not tell the datapath's frames from the
	// bridge's here. It counts since the port was added, or the daemon started.
	Shared bool `json:"shared"`
	// Meaning says in words what happened, and what to do about it.
	Meaning string `json:"meaning"`
}

// dropReasons name what the kernel's XDP tracepoints report as errors.
var dropReasons = map[unix.Errno]struct{ reason, meaning string }{
	// xdp_devmap_xmit without an error: the device took fewer frames than it was given.
	0: {"ring full", "the receiver was too slow; a guest that has CPU time to spare " +
		"is helped by a longer queue (ip link set PORT txqueuelen 4000) or more queues"},
	unix.ENETDOWN:   {"device down", "the port was set down (ip link set PORT up)"},
	unix.ENXIO:      {"no queue", "nobody has the tap open, or all its queues are off: the guest is starting or stopping"},
	unix.EMSGSIZE:   {"too long", "longer than the port's MTU, which has just changed"},
	unix.EOPNOTSUPP: {"not supported", "the device does not take redirected frames, or not in this form"},
	unix.ENODEV:     {"device gone", "the port was removed while frames were on their way"},
	unix.ENOMEM:     {"no memory", "the kernel had no memory for the frame"},
	unix.ENOBUFS:    {"no buffer", "the device had no buffer for the frame"},
}

// NewDrop makes a Drop out of a counter that is kept by port and errno; errno is
// positive, or 0 for a device that took fewer frames than it was given.
func NewDrop(port string, ifindex, errno int, frames uint64) Drop {
	d := Drop{Port: port, Ifindex: ifindex, Errno: errno, Frames: frames}
	if r, ok := dropReasons[unix.Errno(errno)]; ok {
		d.Reason, d.Meaning = r.reason, r.meaning
		return d
	}
	d.Meaning = unix.Errno(errno).Error()
	if d.Reason = unix.ErrnoName(unix.Errno(errno)); d.Reason == "" {
		d.Reason = fmt.Sprintf("errno %d", errno)
	}
	return d
}

// NewQdiscDrop makes a Drop out of the count of a port's root qdisc.
func NewQdiscDrop(port string, ifindex int, frames uint64) Drop {
	return Drop{Port: port, Ifindex: ifindex, Reason: "qdisc", Frames: frames, Shared: true,
		Meaning: "the port's qdisc dropped them (tc -s qdisc show dev PORT); by tc or the bridge, since tapswitchd knows the port"}
}

// NewDeviceDrop makes a Drop out of the count of a port's device. A tap counts one
// frame for each bulk by XDP that its ring had no room for (tun_xdp_xmit).
func NewDeviceDrop(port string, ifindex int, frames uint64) Drop {
	return Drop{Port: port, Ifindex: ifindex, Reason: "device", Frames: frames, Shared: true,
		Meaning: "the device dropped them (tx_dropped), most often because a guest reads too slowly; by tc or the bridge, " +
			"and one for each bulk of XDP's that is a full ring's, since tapswitchd knows the port"}
}
