package guestbpf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A routeTable is the kernel's routes of one family, and which of them a map has.
type routeTable struct {
	entries *ebpf.Map
	// routes to a prefix, more than one where metrics, types of service or tables
	// differ, or where the kernel has them beside each other.
	routes map[netip.Prefix][]kernelRoute
	// written is what the map has.
	written map[netip.Prefix]guestRoute
	// changed are prefixes for which that may not be true any more.
	changed map[netip.Prefix]bool
	// wide counts routes of the table of own addresses to more than one, which a kernel
	// asks either before the main table or together with it.
	wide int
	// doubtful says that routes must be listed again.
	doubtful bool
}

func newRouteTable(entries *ebpf.Map) *routeTable {
	return &routeTable{
		entries: entries, routes: map[netip.Prefix][]kernelRoute{},
		written: map[netip.Prefix]guestRoute{}, changed: map[netip.Prefix]bool{}, doubtful: true,
	}
}

// reset forgets all routes: they are listed anew.
func (t *routeTable) reset() {
	for p := range t.routes {
		t.changed[p] = true
	}
	clear(t.routes)
	t.wide, t.doubtful = 0, false
}

// isWide says whether packets cross routers that may meet a route to own addresses. No
// packet to a loopback network or a group does.
func isWide(p netip.Prefix, r kernelRoute) bool {
	return r.local && !p.IsSingleIP() && !p.Addr().IsLoopback() && !p.Addr().IsMulticast()
}

// add adds a route that was listed.
func (t *routeTable) add(p netip.Prefix, r kernelRoute) {
	t.routes[p] = append(t.routes[p], r)
	t.changed[p] = true
	if isWide(p, r) {
		t.wide++
	}
}

// appear takes the news of a route. Where the kernel's choice depends on more than the
// news says, the table becomes doubtful.
func (t *routeTable) appear(p netip.Prefix, r kernelRoute, replaces bool) {
	var rivals []int
	for i, have := range t.routes[p] {
		if have.local == r.local && have.particular == r.particular && have.metric == r.metric {
			rivals = append(rivals, i)
		}
	}
	switch {
	case len(rivals) == 0 && !replaces:
		t.add(p, r)
	case len(rivals) == 1 && t.routes[p][rivals[0]] == r && r.simple:
		// known
	case len(rivals) == 1 && replaces && !isWide(p, r):
		t.routes[p][rivals[0]] = r
		t.changed[p] = true
	default:
		t.doubtful = true
	}
}

// vanish takes the news of a route that is gone.
func (t *routeTable) vanish(p netip.Prefix, r kernelRoute) {
	i := slices.Index(t.routes[p], r)
	if i < 0 || slices.Contains(t.routes[p][i+1:], r) || isWide(p, r) {
		t.doubtful = true
		return
	}
	t.changed[p] = true
	if t.routes[p] = slices.Delete(t.routes[p], i, i+1); len(t.routes[p]) == 0 {
		delete(t.routes, p)
	}
}

// choose gives what the program should have for routes to one prefix: the kernel's
// choice, or nothing where it depends on more than the destination.
func choose(routes []kernelRoute) guestRoute {
	best := routes[0]
	alone := true
	for i, r := range routes {
		switch {
		case r.local || r.particular:
			return guestRoute{}
		case i == 0 || r.metric < best.metric:
			best, alone = r, true
		case r.metric == best.metric:
			alone = false
		}
	}
	if !alone {
		return guestRoute{}
	}
	return best.entry()
}

// write brings the map in step. Where it has no room for a route, and so would lead
// packets by a shorter prefix, it is an error.
func (t *routeTable) write() error {
	for p := range t.changed {
		routes, there := t.routes[p]
		old, had := t.written[p]
		switch {
		case there:
			e := choose(routes)
			if had && e == old {
				break
			}
			if err := t.entries.Put(routeKey(p), e); err != nil {
				return fmt.Errorf("writing the route to %s: %w", p, err)
			}
			t.written[p] = e
		case had:
			if err := t.entries.Delete(routeKey(p)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("removing the route to %s: %w", p, err)
			}
			delete(t.written, p)
		}
		delete(t.changed, p)
	}
	return nil
}

func routeKey(p netip.Prefix) any {
	if p.Addr().Is4() {
		return guestRouteKey4{Bits: uint32(p.Bits()), Addr: p.Addr().As4()}
	}
	return guestRouteKey6{Bits: uint32(p.Bits()), Addr: p.Addr().As16()}
}

// list takes all routes from the kernel if there is a doubt.
func (t *routeTable) list(family uint8) error {
	if !t.doubtful {
		return nil
	}
	ask := make([]byte, unix.SizeofRtMsg)
	ask[0] = family
	var fail error
	err := dump(syscall.RTM_GETROUTE, ask, t.reset, func(m syscall.NetlinkMessage) {
		p, r, ok, err := readRoute(m.Data)
		if err != nil {
			fail = err
		} else if ok {
			t.add(p, r)
		}
	})
	if err := errors.Join(err, fail); err != nil {
		t.doubtful = true
		return fmt.Errorf("listing routes: %w", err)
	}
	return nil
}
