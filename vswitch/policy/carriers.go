package policy

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/vswitch"
)

func readLinks() (links []netlink.Link, err error) {
	for range 3 {
		if links, err = netlink.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing devices: %w", err)
	}
	return links, nil
}

// carriers gives the ports whose frames a device carries, by the names of the
// devices below ports: those of a bond, and what a VLAN is on.
func carriers(links []netlink.Link, ports map[int]vswitch.Port) map[string][]int {
	byIndex := map[int]netlink.Link{}
	slaves := map[int][]netlink.Link{}
	for _, l := range links {
		a := l.Attrs()
		byIndex[a.Index] = l
		slaves[a.MasterIndex] = append(slaves[a.MasterIndex], l)
	}
	below := map[string][]int{}
	var descend func(l netlink.Link, port, depth int)
	descend = func(l netlink.Link, port, depth int) {
		// The kernel nests devices at most 8 deep.
		if depth > 8 {
			return
		}
		lowers := slaves[l.Attrs().Index]
		if l.Type() == "vlan" && l.Attrs().NetNsID < 0 {
			if lower := byIndex[l.Attrs().ParentIndex]; lower != nil {
				lowers = append(lowers[:len(lowers):len(lowers)], lower)
			}
		}
		for _, lower := range lowers {
			name := lower.Attrs().Name
			below[name] = append(below[name], port)
			descend(lower, port, depth+1)
		}
	}
	for ifindex := range ports {
		if l := byIndex[ifindex]; l != nil {
			descend(l, ifindex, 0)
		}
	}
	return below
}
