package policy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// maxDatagram is the size of the read buffer: the kernel packs a dump into
// datagrams as large as that, up to 32 KiB, and a full host has a long one.
const maxDatagram = 64 << 10

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
// past it, so a limited guest has the tc way alone.
func readQdiscs(ports map[int]vswitch.Port) (found []qdisc, err error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{MessageBufferSize: maxDatagram})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for qdiscs: %w", err)
	}
	defer c.Close()
	request := netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETQDISC, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, nl.SizeofTcMsg),
	}
	for range 3 {
		if found, err = dumpQdiscs(c, request, ports); !errors.Is(err, errInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	slices.SortFunc(found, func(a, b qdisc) int {
		return cmp.Or(cmp.Compare(a.ifindex, b.ifindex), cmp.Compare(a.handle, b.handle))
	})
	return found, nil
}

func dumpQdiscs(c *netlink.Conn, request netlink.Message, ports map[int]vswitch.Port) (found []qdisc, err error) {
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	if _, err := c.Send(request); err != nil {
		return nil, err
	}
	var interrupted error
	for m, err := range c.ReceiveIter() {
		if err != nil {
			return nil, err
		}
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			interrupted = errInterrupted
		}
		var tc nl.TcMsg
		if _, err := binary.Decode(m.Data, native, &tc); err != nil {
			return nil, fmt.Errorf("reading a qdisc: %w", err)
		}
		if p, ok := ports[int(tc.Ifindex)]; !ok || p.Role != vswitch.RoleGuest {
			continue
		}
		q, limits, err := parseQdisc(tc, m.Data[nl.SizeofTcMsg:])
		if err != nil {
			return nil, fmt.Errorf("reading a qdisc: %w", err)
		}
		if limits {
			found = append(found, q)
		}
	}
	return found, interrupted
}

// parseQdisc reads a qdisc, and says whether it may do more than wait for its
// device.
func parseQdisc(tc nl.TcMsg, attributes []byte) (q qdisc, limits bool, err error) {
	q = qdisc{ifindex: int(tc.Ifindex), handle: fmt.Sprintf("%x:", tc.Handle>>16)}
	ad, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return q, false, err
	}
	rate := uint32(math.MaxUint32)
	for ad.Next() {
		switch ad.Type() {
		case nl.TCA_KIND:
			q.kind = ad.String()
		case nl.TCA_OPTIONS:
			if q.kind == "fq" { // the kind comes first
				ad.Nested(func(ad *netlink.AttributeDecoder) error {
					for ad.Next() {
						if ad.Type() == nl.TCA_FQ_FLOW_MAX_RATE {
							rate = ad.Uint32()
						}
					}
					return nil
				})
			}
		}
	}
	// Those that the kernel gives to a device by itself have no handle; whatever
	// the system's default is, it is nobody's limit for this port.
	return q, tc.Handle != 0 && !harmless[q.kind] || rate != math.MaxUint32, ad.Err()
}
