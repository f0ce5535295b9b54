package vswitch

import (
	"fmt"
	"net/netip"
	"strings"
)

// A Filter says which unicast frames somebody else's filter of a port is sure to let
// through: the fast path takes these alone, and leaves to the bridge and the filter
// what becomes of the rest. The zero value is no filter, for which nothing is looked
// at; one that lets nothing through in either direction is a reason to hold the port
// back.
type Filter struct {
	// In are the kinds of frames that may come in by the port, Out of those that may
	// leave by it.
	In, Out FrameKinds
	// Source is the address that frames must come in from; zero for any.
	Source MAC
	// IPv4 are the addresses that IPv4 packets must come in from, in order, the
	// Sources first of them; none for any.
	IPv4    [FilterSources][4]byte
	Sources int
}

// FilterSources is how many IPv4 addresses a filter has room for.
const FilterSources = 8

// FrameKinds are sets of frames, told apart by their type.
type FrameKinds uint8

// The kinds. What is neither IPv4 nor IPv6 is of no known kind, and so is what has a
// VLAN tag at the port.
const (
	FramesIPv4 FrameKinds = 1 << iota
	FramesIPv6
	FramesOther
	FramesAll = FramesIPv4 | FramesIPv6 | FramesOther
)

func (k FrameKinds) String() string {
	switch k {
	case 0:
		return "no frames"
	case FramesAll:
		return "all frames"
	}
	var names []string
	for _, kind := range []struct {
		FrameKinds
		name string
	}{{FramesIPv4, "IPv4"}, {FramesIPv6, "IPv6"}, {FramesOther, "frames of other kinds"}} {
		if k&kind.FrameKinds != 0 {
			names = append(names, kind.name)
		}
	}
	return strings.Join(names, " and ")
}

// String says in words what the filter lets through.
func (f Filter) String() string {
	in := f.In.String()
	if f.In != 0 && f.Source != (MAC{}) {
		in += " of " + f.Source.String()
	}
	if f.In&FramesIPv4 != 0 && f.Sources > 0 {
		var addrs []string
		for _, a := range f.IPv4[:f.Sources] {
			addrs = append(addrs, netip.AddrFrom4(a).String())
		}
		in += fmt.Sprintf(" with source address %s", strings.Join(addrs, ", "))
	}
	return in + " in, " + f.Out.String() + " out"
}
