package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A qdisc is a queueing discipline on a guest's port that limits or drops.
type qdisc struct {
	ifindex int
	kind    string
	handle  string // as tc shows it
}

// harmless are the kinds that only order frames, or drop them when a queue is
// full. clsact and ingress have no queue; their filters are hostbpf's to find.
var harmless = map[string]bool{
	"noqueue": true, "pfifo_fast": true, "pfifo": true, "bfifo": true, "fq": true, "fq_codel": true, "mq": true,
	"clsact": true, "ingress": true,
}

// readQdiscs gives the qdiscs on guests' ports that limit or drop.
//
// An uplink's don't matter: the fast path sends to it by tc redirect alone, which
// goes through the qdisc as the bridge does. To a guest it may be XDP, which goes
// past it. With a direction of its own for each of the two ways out, a limited
// guest would still have the tc way, which is that of other guests' frames and of
// bulk TCP; as there is one, Out, all frames to it go by the bridge.
func readQdiscs(ports map[int]vswitch.Port) (found []qdisc, err error) {
	var all []netlink.Qdisc
	for range 3 {
		if all, err = netlink.QdiscList(nil); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	for _, q := range all {
		a := q.Attrs()
		if p, ok := ports[a.LinkIndex]; ok && p.Role == vswitch.RoleGuest && limits(q) {
			found = append(found, qdisc{a.LinkIndex, q.Type(), fmt.Sprintf("%x:", a.Handle>>16)})
		}
	}
	slices.SortFunc(found, func(a, b qdisc) int {
		return cmp.Or(cmp.Compare(a.ifindex, b.ifindex), cmp.Compare(a.handle, b.handle))
	})
	return found, nil
}

// limits says whether a qdisc may do more than wait for its device.
func limits(q netlink.Qdisc) bool {
	if fq, ok := q.(*netlink.Fq); ok && fq.FlowMaxRate != 0 && fq.FlowMaxRate != ^uint32(0) {
		return true
	}
	// Those that the kernel gives to a device by itself have no handle; whatever
	// the system's default is, it is nobody's limit for this port.
	return q.Attrs().Handle != netlink.HANDLE_NONE && !harmless[q.Type()]
}
