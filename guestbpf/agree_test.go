package guestbpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	routeChanges = flag.Int("changes", 3000, "random changes of routes after which packets are held against the kernel's answers")
	routeSeed    = flag.Uint64("seed", 0, "of the random changes; 0 for another each time")
)

// TestAgreesWithKernel changes routes, neighbours, devices, rules and settings at random,
// and asks after each few changes where packets go: both ways of routing must send them
// where the kernel would, or leave them to it; and what is simple they must not leave.
func TestAgreesWithKernel(t *testing.T) {
	seed := *routeSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	a := &agreement{rig: newRig(t), rand: rand.New(rand.NewPCG(seed, 0))}
	a.prepare()
	const batch, probes = 40, 40
	for made := 0; made < *routeChanges; made += batch {
		a.log = a.log[:0]
		for range batch {
			a.change()
		}
		a.hold(probes)
	}
	t.Logf("%d changes, of which the kernel took %d; packets: %v", *routeChanges, a.taken, a.tally)
	for _, mode := range routingModes {
		for _, family := range []string{"IPv4", "IPv6"} {
			for _, what := range []string{"sent as the kernel would", "left to the kernel as they must be"} {
				if n := a.tally[fmt.Sprintf("%s %s %s", mode, family, what)]; n < *routeChanges/100 {
					t.Errorf("%s: %d packets of %s were %s: that shows nothing", mode, n, family, what)
				}
			}
		}
	}
}

// hold brings the tables in step and holds n packets against the kernel.
func (a *agreement) hold(n int) {
	a.inside(func() error {
		return errors.Join(a.follow.keepStep(), a.compare(n))
	})
}

type agreement struct {
	*rig
	rand  *rand.Rand
	taken int
	tally map[string]int
	log   []string
}

func (a *agreement) prepare() {
	a.tally = map[string]int{}
	// Paths are chosen by ports too, as one may set a router up.
	a.sysctl("net/ipv4/fib_multipath_hash_policy", "1")
	a.sysctl("net/ipv6/fib_multipath_hash_policy", "1")
}

func (a *agreement) one(v ...string) string { return v[a.rand.IntN(len(v))] }

// prefixes nest, and have what stations' networks have and what they lack.
func (a *agreement) prefix(v6 bool) *net.IPNet {
	var text string
	if v6 {
		text = a.one("::/0", "2001:db8::/32", "2001:db8:100::/40", "2001:db8:101::/48", "2001:db8:101:1::/64", "2001:db8:102::/48",
			"2001:db8:101:1::7/128", "2001:db8:101:1::8/128", "2001:db8:1::2/128", "2001:db8:2::/65", "2001:db8:1::/64", "2001:db8:3::/48")
	} else {
		text = a.one("0.0.0.0/0", "198.18.0.0/15", "198.19.0.0/16", "198.19.1.0/24", "198.19.1.128/25", "198.19.2.0/24",
			"198.19.1.7/32", "198.19.1.8/32", "198.18.1.2/32", "198.18.2.0/25", "198.18.1.0/24", "198.19.3.0/24")
	}
	_, p, err := net.ParseCIDR(text)
	a.must(err)
	return p
}

func (a *agreement) destination(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(a.one("2001:db8:101::1", "2001:db8:101:1::7", "2001:db8:101:1::8", "2001:db8:101:1::9", "2001:db8:102::1",
			"2001:db8:1::2", "2001:db8:1::3", "2001:db8:2::2", "2001:db8:2::3", "2001:db8:2:0:8000::2", "2001:db8:3::1", "2001:db8:ffff::1",
			"2001:db8:1::1", "2001:db8:1::9"))
	}
	return netip.MustParseAddr(a.one("198.19.1.1", "198.19.1.7", "198.19.1.8", "198.19.1.200", "198.19.2.1", "198.18.1.2", "198.18.1.3",
		"198.18.2.2", "198.18.2.3", "198.18.2.200", "198.19.3.1", "198.19.77.1", "198.18.1.1", "198.18.1.9", "198.18.1.255"))
}

func (a *agreement) gateway(v6 bool) (int, net.IP) {
	i := a.rand.IntN(rigDevices)
	return a.devices[i].ifindex, rigAddr(i, 2+a.rand.IntN(5), v6).AsSlice()
}

func (a *agreement) route(v6 bool) *netlink.Route {
	r := &netlink.Route{Dst: a.prefix(v6), Priority: 100 * a.rand.IntN(4), Family: unix.AF_INET}
	if v6 {
		r.Family = unix.AF_INET6
	}
	switch a.rand.IntN(16) {
	case 0:
		r.Type = unix.RTN_BLACKHOLE
	case 1:
		r.Type = []int{unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT, unix.RTN_THROW}[a.rand.IntN(3)]
	case 2, 3:
		for range 2 + a.rand.IntN(2) {
			ifindex, gw := a.gateway(v6)
			r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: ifindex, Gw: gw, Hops: a.rand.IntN(3)})
		}
	case 4, 5, 6:
		r.LinkIndex, r.Scope = a.devices[a.rand.IntN(rigDevices)].ifindex, netlink.SCOPE_LINK
	default:
		r.LinkIndex, r.Gw = a.gateway(v6)
	}
	switch a.rand.IntN(30) {
	case 0:
		r.MTU = 1400
	case 4, 5, 6:
		// With this address, if the router has it, goes the route.
		if r.Src = net.ParseIP("198.19.1.8"); v6 {
			r.Src = net.ParseIP("2001:db8:101:1::8")
		}
	case 1:
		if !v6 {
			r.Tos = 0x10
		}
	case 2:
		r.Table = 77
	case 3:
		if !v6 && r.Gw != nil {
			_, gw := a.gateway(true)
			r.Gw, r.Via = nil, &netlink.Via{AddrFamily: unix.AF_INET6, Addr: gw}
		}
	}
	return r
}

// change makes one change. The kernel may refuse it.
func (a *agreement) change() {
	v6 := a.rand.IntN(2) == 0
	n := a.Netlink()
	var (
		err  error
		what string
	)
	switch a.rand.IntN(100) {
	default:
		r := a.route(v6)
		what = a.one("add", "add", "append", "replace", "replace", "delete", "delete", "delete")
		err = map[string]func(*netlink.Route) error{
			"add": n.RouteAdd, "append": n.RouteAppend, "replace": n.RouteReplace, "delete": n.RouteDel,
		}[what](r)
		what += " " + r.String()
	case 0, 1, 2, 3, 4, 5, 6, 7, 8, 9:
		// One that is there, or a part of it.
		list, e := n.RouteListFiltered(unix.AF_UNSPEC, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		a.must(e)
		if len(list) > 0 {
			r := list[a.rand.IntN(len(list))]
			if len(r.MultiPath) > 0 && a.rand.IntN(2) == 0 {
				r.LinkIndex, r.Gw, r.MultiPath = r.MultiPath[0].LinkIndex, r.MultiPath[0].Gw, nil
			}
			what, err = "delete "+r.String(), n.RouteDel(&r)
		}
	case 10, 11, 12, 13, 14, 15, 16, 17:
		what, err = a.changeNeighbour(v6)
	case 18:
		what, err = a.changeDevice()
	case 19:
		what, err = a.changeRule(v6)
	case 20:
		what, err = a.changeAddress(v6)
	case 21, 22, 23:
		what, err = a.changeNexthop(v6)
	case 24, 25, 26, 27, 28:
		what, err = a.mend(v6)
	}
	if err == nil {
		a.taken++
	} else {
		what += ": " + err.Error()
	}
	a.log = append(a.log, what)
}

// changeNexthop makes, changes or removes an object that routes name, or a route to one.
func (a *agreement) changeNexthop(v6 bool) (string, error) {
	family, id := uint8(unix.AF_INET), uint32(1+a.rand.IntN(3))
	if v6 {
		family, id = unix.AF_INET6, id+3
	}
	var (
		kind, flags uint16
		m           []byte
	)
	what := a.one("nexthop", "nexthop", "no nexthop", "route", "route", "route")
	switch what {
	case "route":
		p := a.prefix(v6)
		bits, _ := p.Mask.Size()
		kind, flags = syscall.RTM_NEWROUTE, syscall.NLM_F_CREATE|syscall.NLM_F_REPLACE
		m = []byte{family, uint8(bits), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
		m = append(m, attribute(unix.RTA_DST, p.IP)...)
		m = append(m, attribute(attrNexthop, number(id))...)
	default:
		m = append([]byte{family, 0, 0, 0, 0, 0, 0, 0}, attribute(unix.NHA_ID, number(id))...)
		if kind = unix.RTM_DELNEXTHOP; what == "nexthop" {
			kind, flags = unix.RTM_NEWNEXTHOP, syscall.NLM_F_CREATE|syscall.NLM_F_REPLACE
			ifindex, gw := a.gateway(v6)
			m = append(m, attribute(unix.NHA_OIF, number(uint32(ifindex)))...)
			m = append(m, attribute(unix.NHA_GATEWAY, gw)...)
		}
	}
	return fmt.Sprint(what, " ", id), a.Do(func() error {
		_, err := request(kind, syscall.NLM_F_ACK|flags, m)
		return err
	})
}

// mend gives a device its network and neighbours again.
func (a *agreement) mend(v6 bool) (string, error) {
	i := a.rand.IntN(rigDevices)
	bits, metric := 24, 0
	if v6 {
		bits, metric = 64, 256
	}
	network, err := netlink.ParseIPNet(netip.PrefixFrom(rigAddr(i, 0, v6), bits).String())
	a.must(err)
	for n := 2; n < 6; n++ {
		err = errors.Join(err, a.Netlink().NeighSet(a.neighbour(i, n, v6, farMAC(16*i+n), netlink.NUD_PERMANENT)))
	}
	r := &netlink.Route{Dst: network, LinkIndex: a.devices[i].ifindex, Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_KERNEL, Priority: metric}
	return fmt.Sprint("mend ", i), errors.Join(err, a.Netlink().RouteReplace(r))
}

// changeAddress gives a device an address more, and mostly takes it away again.
func (a *agreement) changeAddress(v6 bool) (string, error) {
	text := a.one("198.19.1.7/32", "198.19.1.8/24", "198.19.2.1/25")
	if v6 {
		text = a.one("2001:db8:101:1::7/128", "2001:db8:101:1::8/64", "2001:db8:102::1/48")
	}
	addr, err := netlink.ParseAddr(text)
	a.must(err)
	addr.Flags = unix.IFA_F_NODAD
	dev, err := a.Netlink().LinkByIndex(a.devices[a.rand.IntN(rigDevices)].ifindex)
	a.must(err)
	if err := a.Netlink().AddrAdd(dev, addr); err != nil {
		return "address " + text, errors.Join(err, a.Netlink().AddrDel(dev, addr))
	}
	if a.rand.IntN(4) > 0 {
		return "address " + text + " for a moment", a.Netlink().AddrDel(dev, addr)
	}
	a.awaitAddresses()
	return "address " + text, nil
}

func (a *agreement) changeNeighbour(v6 bool) (string, error) {
	i, station := a.rand.IntN(rigDevices), 2+a.rand.IntN(5)
	switch what := a.one("permanent", "stale", "failed", "remove"); what {
	case "remove":
		return what, a.Netlink().NeighDel(a.neighbour(i, station, v6, nil, 0))
	default:
		mac, state := farMAC(a.rand.IntN(250)), map[string]int{
			"permanent": netlink.NUD_PERMANENT, "stale": netlink.NUD_STALE, "failed": netlink.NUD_FAILED,
		}[what]
		if state == netlink.NUD_FAILED {
			mac = nil
		}
		return fmt.Sprint(what, " ", i, " ", station), a.Netlink().NeighSet(a.neighbour(i, station, v6, mac, state))
	}
}

// changeDevice switches a device, or the one at the wire's other end, off and on again
// with other changes in between.
func (a *agreement) changeDevice() (string, error) {
	dev := fmt.Sprint(a.one("eth", "far"), a.rand.IntN(rigDevices))
	link, err := a.Link(dev)
	a.must(err)
	a.must(a.Netlink().LinkSetDown(link))
	a.log = append(a.log, dev+" down")
	for range 5 {
		a.must(a.Do(func() error {
			r := a.route(a.rand.IntN(2) == 0)
			_ = a.Netlink().RouteReplace(r)
			return nil
		}))
	}
	a.hold(10)
	a.must(a.Netlink().LinkSetUp(link))
	a.must(a.WaitRunning(a.Context(), "eth"+dev[3:]))
	a.awaitAddresses()
	return dev + " up", nil
}

// awaitAddresses waits for the kernel to take IPv6 addresses for its own, which it does
// some time after they came, or a device was switched on.
func (a *agreement) awaitAddresses() {
	a.inside(func() error {
		news, err := subscribe(unix.RTNLGRP_IPV6_ROUTE)
		if err != nil {
			return err
		}
		defer news.close()
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			own, err := a.Netlink().RouteListFiltered(unix.AF_INET6, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL},
				netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
			if err != nil {
				return err
			}
			addrs, err := a.Netlink().AddrList(nil, unix.AF_INET6)
			if err != nil {
				return err
			}
			missing := 0
			for _, addr := range addrs {
				if !slices.ContainsFunc(own, func(r netlink.Route) bool { return r.Dst.IP.Equal(addr.IP) }) {
					missing++
				}
			}
			if missing == 0 {
				return nil
			}
			if err := news.wait(a.Context(), time.Until(deadline)); err != nil {
				return err
			}
			if err := news.drain(func(syscall.NetlinkMessage) {}); err != nil {
				return err
			}
		}
		return errors.New("the kernel has not taken the router's addresses for its own")
	})
}

// changeRule adds a rule, looks, and takes it away.
func (a *agreement) changeRule(v6 bool) (string, error) {
	rule := netlink.NewRule()
	rule.Table, rule.Priority, rule.Family = 77, 1000, unix.AF_INET
	if v6 {
		rule.Family = unix.AF_INET6
	}
	rule.Src = a.prefix(v6)
	a.must(a.Netlink().RuleAdd(rule))
	a.hold(10)
	return "rule", a.Netlink().RuleDel(rule)
}

// An answer is where the kernel says that a packet goes.
type answer struct {
	routed  bool
	oif     int
	nextHop netip.Addr
}

// ask asks the kernel where a packet goes that comes by a device.
func ask(iif int, p packet) (answer, error) {
	m := make([]byte, unix.SizeofRtMsg)
	m[0], m[1] = unix.AF_INET, 32
	if p.to.Is6() {
		m[0], m[1] = unix.AF_INET6, 128
	}
	m = append(m, attribute(unix.RTA_DST, p.to.AsSlice())...)
	m = append(m, attribute(unix.RTA_SRC, p.from.AsSlice())...)
	m = append(m, attribute(unix.RTA_IIF, number(uint32(iif)))...)
	m = append(m, attribute(unix.RTA_IP_PROTO, []byte{17})...)
	m = append(m, attribute(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, p.sport))...)
	m = append(m, attribute(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, 9))...)
	reply, err := request(syscall.RTM_GETROUTE, 0, m)
	if refused := (*extackError)(nil); errors.As(err, &refused) {
		return answer{}, nil
	}
	if err != nil {
		return answer{}, err
	}
	attrs := attributes(reply[unix.SizeofRtMsg:])
	got := answer{routed: reply[7] == unix.RTN_UNICAST && readNumber(attrs[unix.RTA_OIF]) != 0, oif: int(readNumber(attrs[unix.RTA_OIF])), nextHop: p.to}
	if e, ok := attrs[unix.RTA_CACHEINFO]; ok && len(e) >= 16 && int32(readNumber(e[12:])) != 0 {
		got.routed = false // rta_error
	}
	if gw, ok := netip.AddrFromSlice(attrs[unix.RTA_GATEWAY]); ok {
		got.nextHop = gw
	}
	if via := attrs[unix.RTA_VIA]; len(via) > 2 {
		got.nextHop, _ = netip.AddrFromSlice(via[2:])
	}
	return got, nil
}

// knowledge is what the kernel has at one moment, listed by another library.
type knowledge struct {
	routes [2][]netlink.Route // of IPv4 and IPv6
	macs   map[station]net.HardwareAddr
	rules  [2]bool // whether there are others than the kernel's own
	up     [rigDevices]bool
}

func (a *agreement) learn() (k knowledge, err error) {
	k.macs = map[station]net.HardwareAddr{}
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		all, err := a.Netlink().RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return k, err
		}
		for _, r := range all {
			if r.Table == unix.RT_TABLE_MAIN || r.Table == unix.RT_TABLE_LOCAL {
				k.routes[i] = append(k.routes[i], r)
			}
		}
		neighbours, err := a.Netlink().NeighList(0, family)
		if err != nil {
			return k, err
		}
		for _, n := range neighbours {
			if addr, ok := netip.AddrFromSlice(n.IP); ok && n.State&validNeighbour != 0 {
				k.macs[station{n.LinkIndex, addr.Unmap()}] = n.HardwareAddr
			}
		}
		rules, err := a.Netlink().RuleList(family)
		if err != nil {
			return k, err
		}
		k.rules[i] = len(rules) != []int{3, 2}[i]
	}
	for i, d := range a.devices {
		link, err := a.Netlink().LinkByIndex(d.ifindex)
		if err != nil {
			return k, err
		}
		k.up[i] = link.Attrs().RawFlags&unix.IFF_UP != 0 && link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
	}
	return k, nil
}

// simple says whether a packet to an address has one plain route: those that the tables
// must not leave to the kernel.
func (k *knowledge) simple(to netip.Addr) (netlink.Route, bool) {
	family := 0
	if to.Is6() {
		family = 1
	}
	if k.rules[family] {
		return netlink.Route{}, false
	}
	var best []netlink.Route
	bits := -1
	for _, r := range k.routes[family] {
		n := 0
		if r.Dst != nil {
			n, _ = r.Dst.Mask.Size()
			if !r.Dst.Contains(to.AsSlice()) {
				continue
			}
		}
		if n > bits {
			best, bits = nil, n
		}
		if n == bits {
			best = append(best, r)
		}
	}
	if len(best) == 0 {
		return netlink.Route{}, false
	}
	chosen, alone := best[0], true
	for i, r := range best {
		if r.Table == unix.RT_TABLE_LOCAL || r.Tos != 0 {
			return r, false
		}
		if i > 0 && r.Priority == chosen.Priority {
			alone = false
		}
		if r.Priority < chosen.Priority {
			chosen, alone = r, true
		}
	}
	plain := chosen.Type == unix.RTN_UNICAST && len(chosen.MultiPath) == 0 && chosen.Via == nil &&
		chosen.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0
	return chosen, alone && plain
}

func (k *knowledge) wide(v6 bool) bool {
	for _, r := range k.routes[map[bool]int{false: 0, true: 1}[v6]] {
		if r.Table != unix.RT_TABLE_LOCAL || r.Dst == nil {
			continue
		}
		if ones, bits := r.Dst.Mask.Size(); ones != bits && !r.Dst.IP.IsLoopback() && !r.Dst.IP.IsMulticast() {
			return true
		}
	}
	return false
}

// compare holds n random packets against the kernel. It runs inside.
func (a *agreement) compare(n int) error {
	k, err := a.learn()
	if err != nil {
		return err
	}
	for range n {
		from := a.rand.IntN(rigDevices)
		if !k.up[from] {
			continue // no packet comes by it
		}
		v6 := a.rand.IntN(2) == 0
		p := packet{dest: rigMAC(from), from: rigAddr(from, 2+a.rand.IntN(4), v6), to: a.destination(v6), ttl: 64, sport: uint16(a.rand.Uint32()), payload: 20}
		if a.rand.IntN(8) == 0 {
			p.from = a.destination(v6)
		}
		for _, mode := range routingModes {
			if err := a.compareOne(&k, mode, from, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *agreement) compareOne(k *knowledge, mode Mode, from int, p packet) error {
	iif := a.devices[from].ifindex
	want, err := ask(iif, p)
	if err != nil {
		return err
	}
	got, err := a.run(mode, from, p.frame())
	if err != nil {
		return err
	}
	mac := k.macs[station{want.oif, want.nextHop}]
	may := want.routed && want.oif != iif && mac != nil
	var source net.HardwareAddr
	must := false
	for i, d := range a.devices {
		if d.ifindex == want.oif {
			source = rigMAC(i)
			must = may && k.up[i]
		}
	}
	may = may && source != nil
	if back, simple := k.simple(p.from); p.from.Is4() && !(simple && back.LinkIndex == iif) {
		must = false
	}
	route, simple := k.simple(p.to)
	if mode == L3fwdRoutes && (!simple || k.wide(p.from.Is6())) {
		must = false
	}
	// A throw of IPv6 in a rule's table ends the helper's search.
	if k.rules[map[bool]int{true: 1, false: 0}[p.to.Is6()]] {
		must = false
	}
	describe := func(text string) error {
		return fmt.Errorf("%s: a packet from %s by %d to %s, port %d: verdict %s: %s; the kernel says %+v, with neighbour %s; route %s, simple %v; changes: %q",
			mode, p.from, iif, p.to, p.sport, got.verdict, text, want, mac, route, simple, a.log)
	}
	family := map[bool]string{true: "IPv4", false: "IPv6"}[p.from.Is4()]
	count := func(what string) { a.tally[fmt.Sprintf("%s %s %s", mode, family, what)]++ }
	switch {
	case got.verdict == "forward" && !may:
		return describe("the kernel would not send it")
	case got.verdict == "forward":
		out := p
		out.dest, out.ttl = mac, p.ttl-1
		if f := leaving(out, source, nil); !bytes.Equal(got.frame, f) {
			return describe(fmt.Sprintf("it leaves as %x, want %x", got.frame, f))
		}
		count("sent as the kernel would")
	case must:
		return describe("it should be sent")
	case may:
		count("left to the kernel though it would send them")
	default:
		count("left to the kernel as they must be")
	}
	return nil
}
