package guestbpf

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

var routingModes = []Mode{L3fwdFIB, L3fwdRoutes}

// A frameCase is one frame to the router by eth0, and what becomes of it.
type frameCase struct {
	name  string
	frame []byte
	want  string
	// forwarded is the packet as it leaves; its dest is the neighbour's.
	forwarded packet
	source    net.HardwareAddr
	only      Mode // if not both
}

// to4 and to6 are packets that are forwarded from a neighbour at eth0 to one at eth1.
func routable(v6 bool) packet {
	return packet{dest: rigMAC(0), from: rigAddr(0, 2, v6), to: rigAddr(1, 2, v6), ttl: 64, payload: 100, sport: 1000}
}

// changed gives a frame in which bytes at an offset are others; the IPv4 header's
// checksum is right again.
func changed(p packet, at int, with ...byte) []byte {
	f := p.frame()
	copy(f[at:], with)
	if p.from.Is4() {
		setSum(f[14:34])
	}
	return f
}

func addressed(p packet, from, to string) packet {
	if from != "" {
		p.from = netip.MustParseAddr(from)
	}
	if to != "" {
		p.to = netip.MustParseAddr(to)
	}
	return p
}

func frameCases() []frameCase {
	p4, p6 := routable(false), routable(true)
	with := func(p packet, change func(*packet)) packet { change(&p); return p }
	short := func(p packet) packet { return with(p, func(p *packet) { p.payload = 0 }) }
	forwarded := func(name string, p packet, dest, source net.HardwareAddr) frameCase {
		out := p
		out.dest, out.ttl = dest, p.ttl-1
		return frameCase{name: name, frame: p.frame(), want: "forward", forwarded: out, source: source}
	}
	passed := func(name, want string, frame []byte) frameCase {
		return frameCase{name: name, frame: frame, want: want}
	}
	cases := []frameCase{
		passed("to another station", "pass_not_routed", with(p4, func(p *packet) { p.dest = farMAC(3) }).frame()),
		passed("broadcast", "pass_not_routed", with(p4, func(p *packet) { p.dest = net.HardwareAddr{255, 255, 255, 255, 255, 255} }).frame()),
		passed("ARP", "pass_not_routed", changed(p4, 12, 8, 6)),
		passed("cut off in the Ethernet header's VLAN tag", "pass_short", append(append([]byte{}, p4.frame()[:12]...), 0x81, 0)),
		passed("unknown VLAN", "pass_no_device", with(p4, func(p *packet) { p.vid = 7 }).frame()),
		passed("VLAN 0", "pass_not_routed", append(append(append([]byte{}, p4.frame()[:12]...), 0x81, 0, 0, 0), p4.frame()[12:]...)),
		passed("802.1ad", "pass_not_routed", append(append(append([]byte{}, p4.frame()[:12]...), 0x88, 0xa8, 0, 7), p4.frame()[12:]...)),

		passed("IPv4 of version 5", "pass_malformed", changed(p4, 14, 0x55)),
		passed("IPv4 with options", "pass_not_routed", changed(p4, 14, 0x46)),
		passed("IPv4 with a wrong checksum", "pass_malformed", func() []byte { f := p4.frame(); f[24]++; return f }()),
		passed("IPv4 longer than its frame", "pass_malformed", p4.frame()[:100]),
		passed("IPv4 cut off", "pass_malformed", p4.frame()[:30]),
		passed("IPv4 with a lot behind it", "pass_malformed", append(p4.frame(), 0)),
		passed("IPv4 TTL 1", "pass_ttl", with(p4, func(p *packet) { p.ttl = 1 }).frame()),
		passed("IPv4 TTL 0", "pass_ttl", with(p4, func(p *packet) { p.ttl = 0 }).frame()),
		passed("IGMP", "pass_not_routed", changed(p4, 23, 2)),
		passed("ICMP error", "pass_not_routed", func() []byte { f := changed(p4, 23, 1); f[34] = 3; return f }()),
		passed("IPv4 to the router", "pass_no_route", addressed(p4, "", "198.18.1.1").frame()),
		passed("IPv4 to a broadcast address", "pass_no_route", addressed(p4, "", "198.18.1.255").frame()),
		passed("IPv4 to a group", "pass_not_routed", addressed(p4, "", "224.0.0.9").frame()),
		passed("IPv4 to everybody", "pass_not_routed", addressed(p4, "", "255.255.255.255").frame()),
		passed("IPv4 to loopback", "pass_not_routed", addressed(p4, "", "127.0.0.1").frame()),
		passed("IPv4 to nowhere", "pass_no_route", addressed(p4, "", "198.19.255.1").frame()),
		passed("IPv4 back to where it comes from", "pass_no_route", addressed(p4, "", "198.18.0.3").frame()),
		passed("IPv4 without a neighbour", "pass_no_neighbour", addressed(p4, "", "198.18.1.77").frame()),
		passed("IPv4 from the router's address", "pass_source", addressed(p4, "198.18.0.1", "").frame()),
		passed("IPv4 from another device's network", "pass_source", addressed(p4, "198.18.2.2", "").frame()),
		passed("IPv4 from nowhere", "pass_source", addressed(p4, "198.19.255.1", "").frame()),
		passed("IPv4 from a group", "pass_not_routed", addressed(p4, "224.0.0.9", "").frame()),
		passed("IPv4 from loopback", "pass_not_routed", addressed(p4, "127.0.0.1", "").frame()),
		passed("IPv4 from nobody", "pass_not_routed", addressed(p4, "0.0.0.0", "").frame()),
		passed("IPv4 blackhole", "pass_no_route", addressed(p4, "", "198.19.2.1").frame()),
		passed("IPv4 longer than the MTU", "pass_too_long", with(p4, func(p *packet) { p.payload = 1500 - 27 }).frame()),
		passed("IPv4 longer than the route's MTU", "pass_too_long",
			with(addressed(p4, "", "198.19.1.1"), func(p *packet) { p.payload = 1301 - 28 }).frame()),

		passed("IPv6 of version 4", "pass_malformed", changed(p6, 14, 0x40)),
		passed("IPv6 cut off", "pass_malformed", p6.frame()[:50]),
		passed("IPv6 longer than its frame", "pass_malformed", p6.frame()[:100]),
		passed("IPv6 hop limit 1", "pass_ttl", with(p6, func(p *packet) { p.ttl = 1 }).frame()),
		passed("IPv6 hop-by-hop options", "pass_not_routed", changed(p6, 20, 0)),
		passed("IPv6 fragment", "pass_not_routed", changed(p6, 20, 44)),
		passed("neighbour solicitation", "pass_not_routed", func() []byte { f := changed(p6, 20, 58); f[54] = 135; return f }()),
		passed("IPv6 to the router", "pass_no_route", addressed(p6, "", "2001:db8:1::1").frame()),
		passed("IPv6 to the routers' anycast address", "pass_no_route", addressed(p6, "", "2001:db8:1::").frame()),
		passed("IPv6 to the link's own", "pass_not_routed", addressed(p6, "", "fe80::2").frame()),
		passed("IPv6 from the link's own", "pass_not_routed", addressed(p6, "fe80::2", "").frame()),
		passed("IPv6 to a group", "pass_not_routed", addressed(p6, "", "ff02::1").frame()),
		passed("IPv6 from nobody", "pass_not_routed", addressed(p6, "::", "").frame()),
		passed("IPv6 from an IPv4 address", "pass_not_routed", addressed(p6, "::ffff:198.18.0.2", "").frame()),
		passed("IPv6 to nowhere", "pass_no_route", addressed(p6, "", "2001:db8:99::1").frame()),
		passed("IPv6 without a neighbour", "pass_no_neighbour", addressed(p6, "", "2001:db8:1::77").frame()),
		passed("IPv6 longer than the MTU", "pass_too_long", with(p6, func(p *packet) { p.payload = 1500 - 47 }).frame()),

		forwarded("IPv4", p4, farMAC(16+2), rigMAC(1)),
		forwarded("IPv4 as long as the MTU", with(p4, func(p *packet) { p.payload = 1500 - 28 }), farMAC(16+2), rigMAC(1)),
		forwarded("IPv4 TTL 2", with(p4, func(p *packet) { p.ttl = 2 }), farMAC(16+2), rigMAC(1)),
		forwarded("IPv4 TTL 255", with(p4, func(p *packet) { p.ttl = 255 }), farMAC(16+2), rigMAC(1)),
		forwarded("IPv4 by a gateway", addressed(p4, "", "198.19.1.1"), farMAC(16*2+3), rigMAC(2)),
		forwarded("IPv4 as long as the route's MTU",
			with(addressed(p4, "", "198.19.1.1"), func(p *packet) { p.payload = 1300 - 28 }), farMAC(16*2+3), rigMAC(2)),
		forwarded("IPv6", p6, farMAC(16+2), rigMAC(1)),
		forwarded("IPv6 as long as the MTU", with(p6, func(p *packet) { p.payload = 1500 - 48 }), farMAC(16+2), rigMAC(1)),
		forwarded("IPv6 by a gateway", addressed(p6, "", "2001:db8:100::1"), farMAC(16*2+3), rigMAC(2)),
		forwarded("IPv6 from another device's network", addressed(p6, "2001:db8:2::2", ""), farMAC(16+2), rigMAC(1)),
	}
	// The kernel's helper leaves out what is no limit to the kernel's own packets.
	soft := passed("IPv4 longer than the route's MTU that is not locked", "pass_too_long",
		with(addressed(p4, "", "198.19.3.1"), func(p *packet) { p.payload = 1301 - 28 }).frame())
	soft.only = L3fwdRoutes
	padded := forwarded("IPv4 with padding", short(p4), farMAC(16+2), rigMAC(1))
	padded.frame = append(padded.frame, make([]byte, 60-len(padded.frame))...)
	return append(cases, soft, padded)
}

// leaving gives a packet's frame as the router sends it.
func leaving(p packet, source net.HardwareAddr, like []byte) []byte {
	f := p.frame()
	copy(f[6:], source)
	return append(f, make([]byte, max(0, len(like)-len(f)))...)
}

func (r *rig) addRoute(to, gateway string, mtu int, locked bool) {
	r.Helper()
	_, dst, err := net.ParseCIDR(to)
	r.must(err)
	r.must(r.Netlink().RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(gateway), MTU: mtu, MTULock: locked}))
}

func TestRoutedFrames(t *testing.T) {
	r := newRig(t)
	r.addRoute("198.19.1.0/24", rigAddr(2, 3, false).String(), 1300, true)
	r.addRoute("198.19.3.0/24", rigAddr(2, 3, false).String(), 1300, false)
	r.addRoute("2001:db8:100::/48", rigAddr(2, 3, true).String(), 0, false)
	_, hole, _ := net.ParseCIDR("198.19.2.0/24")
	r.must(r.Netlink().RouteAdd(&netlink.Route{Dst: hole, Type: 6}))
	r.inside(r.follow.keepStep)
	for _, mode := range routingModes {
		for _, tt := range frameCases() {
			if tt.only != "" && tt.only != mode {
				continue
			}
			t.Run(fmt.Sprint(mode, " ", tt.name), func(t *testing.T) {
				err := r.Do(func() error {
					got, err := r.run(mode, 0, tt.frame)
					if err != nil {
						return err
					}
					if got.verdict != tt.want {
						return fmt.Errorf("the verdict is %s, want %s", got.verdict, tt.want)
					}
					if tt.want == "forward" {
						if want := leaving(tt.forwarded, tt.source, tt.frame); !bytes.Equal(got.frame, want) {
							return fmt.Errorf("the frame leaves as\n%x, want\n%x", got.frame, want)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestRoutingSwitchedOff turns forwarding off, for all or one of the families.
func TestRoutingSwitchedOff(t *testing.T) {
	r := newRig(t)
	check := func(want4, want6 string) {
		t.Helper()
		// Of settings there is not always news: the process looks twice a second.
		r.follow.look.devices = true
		r.inside(r.follow.keepStep)
		for _, mode := range routingModes {
			for v6, want := range map[bool]string{false: want4, true: want6} {
				r.inside(func() error {
					got, err := r.run(mode, 0, routable(v6).frame())
					if err == nil && got.verdict != want {
						err = fmt.Errorf("%s, IPv6 %v: the verdict is %s, want %s", mode, v6, got.verdict, want)
					}
					return err
				})
			}
		}
	}
	check("forward", "forward")
	r.sysctl("net/ipv4/ip_forward", "0")
	check("pass_off", "forward")
	r.sysctl("net/ipv6/conf/all/forwarding", "0")
	check("pass_off", "pass_off")
	r.sysctl("net/ipv4/ip_forward", "1")
	r.sysctl("net/ipv6/conf/all/forwarding", "1")
	check("forward", "forward")
}

// TestRoutesEnd stops the process that keeps routes in step, and lets it hang.
func TestRoutesEnd(t *testing.T) {
	r := newRig(t)
	expect := func(want string) {
		t.Helper()
		r.inside(func() error {
			got, err := r.meet(L3fwdRoutes, 0, routable(false).frame())
			if err == nil && got.verdict != want {
				err = fmt.Errorf("the verdict is %s, want %s", got.verdict, want)
			}
			return err
		})
	}
	lease := r.follow.router.maps[guestMapLease]
	long := guestRouteLease{Length: 1 << 40}
	r.must(lease.Put(uint32(0), long))
	r.inside(r.follow.renewLease)
	expect("forward")
	r.must(r.follow.router.endLease())
	expect("pass_expired")
	// It hangs: a deadline that has passed is not renewed.
	r.must(lease.Put(uint32(0), guestRouteLease{Deadline: 1, Length: 1 << 40}))
	expect("pass_expired")
}

// TestRoutedVLANs routes by VLAN devices, from and to frames without a tag.
func TestRoutedVLANs(t *testing.T) {
	r := newRig(t)
	for i, vid := range []int{7, 8} {
		below, err := r.Link(fmt.Sprintf("eth%d", i))
		r.must(err)
		v := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("vlan%d", vid), ParentIndex: below.Attrs().Index}, VlanId: vid}
		err = r.Netlink().LinkAdd(v)
		if errors.Is(err, syscall.EOPNOTSUPP) {
			t.Skip("SKIPPED: this kernel has no VLAN devices")
		}
		r.must(err)
		r.must(r.SetUp(v.Name))
		r.must(r.WaitRunning(t.Context(), v.Name))
		for _, v6 := range []bool{false, true} {
			bits := map[bool]int{false: 24, true: 64}[v6]
			r.must(r.AddAddr(v.Name, netip.PrefixFrom(rigAddr(vid, 1, v6), bits)))
			r.must(r.Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: v.Index, IP: rigAddr(vid, 2, v6).AsSlice(), HardwareAddr: farMAC(16*vid + 2), State: netlink.NUD_PERMANENT,
			}))
		}
	}
	r.inside(r.setDevices)
	r.inside(r.follow.keepStep)
	for _, mode := range routingModes {
		for _, v6 := range []bool{false, true} {
			for _, tt := range []struct {
				from, inVID, to, outVID int
			}{
				{7, 7, 2, 0}, {0, 0, 8, 8}, {7, 7, 8, 8}, {7, 7, 0, 0}, {0, 0, 7, 7},
			} {
				in := packet{dest: rigMAC(0), vid: tt.inVID, from: rigAddr(tt.from, 2, v6), to: rigAddr(tt.to, 2, v6), ttl: 64, payload: 1400}
				out := in
				out.vid, out.ttl, out.dest = tt.outVID, 63, farMAC(16*tt.to+2)
				source := rigMAC(map[int]int{0: 0, 2: 2, 7: 0, 8: 1}[tt.to])
				err := r.Do(func() error {
					got, err := r.run(mode, 0, in.frame())
					if err != nil {
						return err
					}
					if want := leaving(out, source, nil); got.verdict != "forward" || !bytes.Equal(got.frame, want) {
						return fmt.Errorf("the verdict is %s, it leaves as\n%.60x, want\n%.60x", got.verdict, got.frame, want)
					}
					return nil
				})
				if err != nil {
					t.Errorf("%s, IPv6 %v, %+v: %v", mode, v6, tt, err)
				}
			}
		}
	}
	// What goes away takes its packets with it.
	v, err := r.Link("vlan7")
	r.must(err)
	r.must(r.Netlink().LinkDel(v))
	r.inside(r.follow.keepStep)
	r.inside(func() error {
		got, err := r.run(L3fwdRoutes, 0, packet{dest: rigMAC(0), vid: 7, from: rigAddr(7, 2, false), to: rigAddr(2, 2, false), ttl: 64, payload: 100}.frame())
		if err == nil && got.verdict != "pass_no_device" {
			err = fmt.Errorf("after the VLAN's end the verdict is %s", got.verdict)
		}
		return err
	})
}
