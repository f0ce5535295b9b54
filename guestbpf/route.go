package guestbpf

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A kernelRoute is a route as rtnetlink tells of it, as far as packets depend on it.
type kernelRoute struct {
	local  bool // in the table of the machine's own addresses; otherwise in the main one
	metric uint32
	// Particular says that it is not for all packets to its prefix.
	particular bool

	// Simple says that what follows is all that there is to it. The others are the
	// kernel's to follow.
	simple  bool
	oif     int
	gateway netip.Addr // not valid: the destination is a neighbour
	mtu     uint32     // 0: that of the device
}

// plainRouteAttributes are those that a simple route may have. Any other means that it
// may be more than it seems.
var plainRouteAttributes = map[uint16]bool{
	unix.RTA_DST: true, unix.RTA_OIF: true, unix.RTA_GATEWAY: true, unix.RTA_PREFSRC: true, unix.RTA_PRIORITY: true,
	unix.RTA_TABLE: true, unix.RTA_METRICS: true, unix.RTA_CACHEINFO: true, unix.RTA_PREF: true, unix.RTA_FLOW: true,
	unix.RTA_PAD: true,
	// Beside it stands what it means, and news of it makes us list routes again.
	attrNexthop: true,
}

// plainRouteFlags are those that don't change where packets go.
const plainRouteFlags = unix.RTNH_F_ONLINK | unix.RTNH_F_OFFLOAD | unix.RTNH_F_TRAP |
	unix.RTM_F_OFFLOAD | unix.RTM_F_OFFLOAD_FAILED | unix.RTM_F_TRAP

var errCutOff = errors.New("reading the kernel's message: it is cut off")

// readRoute reads an RTM_NEWROUTE or RTM_DELROUTE. Ok is false for what is in no table
// that packets are looked up in.
func readRoute(b []byte) (prefix netip.Prefix, r kernelRoute, ok bool, err error) {
	if len(b) < unix.SizeofRtMsg {
		return prefix, r, false, errCutOff
	}
	family, bits, sourceBits, tos := b[0], int(b[1]), b[2], b[3]
	table, kind, flags := uint32(b[4]), b[7], binary.NativeEndian.Uint32(b[8:])
	attrs := attributes(b[unix.SizeofRtMsg:])
	if t, ok := attrs[unix.RTA_TABLE]; ok {
		table = readNumber(t)
	}
	if family != unix.AF_INET && family != unix.AF_INET6 || flags&unix.RTM_F_CLONED != 0 ||
		table != unix.RT_TABLE_MAIN && table != unix.RT_TABLE_LOCAL {
		return prefix, r, false, nil
	}
	if prefix, err = readPrefix(family, attrs[unix.RTA_DST], bits); err != nil {
		return prefix, r, false, err
	}
	r = kernelRoute{
		local: table == unix.RT_TABLE_LOCAL, metric: readNumber(attrs[unix.RTA_PRIORITY]), particular: tos != 0 || sourceBits != 0,
	}
	if r.local || r.particular || kind != unix.RTN_UNICAST || flags&^plainRouteFlags != 0 {
		return prefix, r, true, nil
	}
	for a := range attrs {
		if !plainRouteAttributes[a] {
			return prefix, r, true, nil
		}
	}
	if expires(attrs[unix.RTA_CACHEINFO]) {
		return prefix, r, true, nil
	}
	if g, there := attrs[unix.RTA_GATEWAY]; there {
		a, sound := netip.AddrFromSlice(g)
		if !sound || a.Is4() != prefix.Addr().Is4() || a.IsUnspecified() {
			return prefix, r, true, nil
		}
		r.gateway = a
	}
	r.oif = int(readNumber(attrs[unix.RTA_OIF]))
	r.mtu = readNumber(attributes(attrs[unix.RTA_METRICS])[unix.RTAX_MTU])
	r.simple = r.oif != 0
	return prefix, r, true, nil
}

// expires says whether an rta_cacheinfo has a time after which the route is not used.
func expires(info []byte) bool { return len(info) >= 12 && binary.NativeEndian.Uint32(info[8:]) != 0 }

func readPrefix(family uint8, dest []byte, bits int) (netip.Prefix, error) {
	a := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		a = netip.IPv6Unspecified()
	}
	if dest != nil {
		given, ok := netip.AddrFromSlice(dest)
		if !ok || given.Is4() != a.Is4() {
			return netip.Prefix{}, errCutOff
		}
		a = given
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}, errCutOff
	}
	return p, nil
}

// entry is the route as the program has it.
func (r kernelRoute) entry() guestRoute {
	if !r.simple {
		return guestRoute{}
	}
	e := guestRoute{Ifindex: uint32(r.oif), Mtu: r.mtu}
	if r.gateway.IsValid() {
		copy(e.Gateway[:], r.gateway.AsSlice())
	}
	return e
}
