package control

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A Drop counts frames that the datapath sent to a port and that were lost on
// the way.
type Drop struct {
	Port    string `json:"port"` // that the frames were to leave by
	Ifindex int    `json:"ifindex"`
	Reason  string `json:"reason"`
	Errno   int    `json:"errno"` // positive; 0 if the kernel gave none
	Frames  uint64 `json:"frames"`
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
