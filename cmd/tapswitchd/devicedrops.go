package main

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// deviceDrops tell what the kernel has dropped on the way out of each port since
// it was added, or since the daemon's start: by the qdisc, and by the device. A
// frame that tc redirects may end in either, without any tracepoint to tell it
// from a frame of the bridge.
type deviceDrops map[int]dropCounts

// dropCounts are the kernel's.
type dropCounts struct{ qdisc, device uint64 }

// follow notes where the counters of new ports begin, and forgets those of ports
// that have gone.
func (d deviceDrops) follow(ports map[int]vswitch.PlannedPort) error {
	for ifindex := range d {
		if _, there := ports[ifindex]; !there {
			delete(d, ifindex)
		}
	}
	fresh := map[int]bool{}
	for ifindex := range ports {
		if _, known := d[ifindex]; !known {
			fresh[ifindex] = true
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	now, err := readDrops()
	for ifindex := range fresh {
		if counts, ok := now[ifindex]; ok {
			d[ifindex] = counts
		}
	}
	return err
}

// since gives how far the counters have come.
func (d deviceDrops) since() (map[int]dropCounts, error) {
	now, err := readDrops()
	grown := map[int]dropCounts{}
	for ifindex, began := range d {
		if c, ok := now[ifindex]; ok {
			grown[ifindex] = dropCounts{less(c.qdisc, began.qdisc), less(c.device, began.device)}
		}
	}
	return grown, err
}

// readDrops reads the counters of all devices.
func readDrops() (map[int]dropCounts, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("reading the devices' counters: %w", err)
	}
	counts := map[int]dropCounts{}
	for _, l := range links {
		if s := l.Attrs().Statistics; s != nil {
			counts[l.Attrs().Index] = dropCounts{device: s.TxDropped}
		}
	}
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("reading the qdiscs' counters: %w", err)
	}
	for _, q := range qdiscs {
		a := q.Attrs()
		if c, ok := counts[a.LinkIndex]; ok && a.Parent == netlink.HANDLE_ROOT && a.Statistics != nil && a.Statistics.Queue != nil {
			c.qdisc = uint64(a.Statistics.Queue.Drops)
			counts[a.LinkIndex] = c
		}
	}
	return counts, nil
}

// less subtracts counters, of which a new device's or qdisc's begins anew.
func less(a, b uint64) uint64 { return a - min(a, b) }

// followDrops has the counters of new ports noted.
func (s *service) followDrops() {
	if err := s.drops.follow(s.plan.Ports); err != nil {
		s.log.Warn("noting where the counters of new ports begin", "error", err)
	}
}

// deviceDrops gives what was dropped behind the ports.
func (s source) deviceDrops() (drops []control.Drop, err error) {
	grown, err := s.drops.since()
	for ifindex, c := range grown {
		name := s.plan.Ports[ifindex].Name
		if c.qdisc > 0 {
			drops = append(drops, control.NewQdiscDrop(name, ifindex, c.qdisc))
		}
		if c.device > 0 {
			drops = append(drops, control.NewDeviceDrop(name, ifindex, c.device))
		}
	}
	return drops, err
}
