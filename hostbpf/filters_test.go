package hostbpf

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A packet is an Ethernet frame with IPv4, IPv6 or neither.
type packet struct {
	to, from vswitch.MAC
	source   string // address of the IP packet; empty for one of no known kind
	fragment bool
	options  bool
}

func (p packet) frame(t *testing.T) []byte {
	t.Helper()
	if p.source == "" {
		return frame(p.to, p.from, other, 60)
	}
	source := net.ParseIP(p.source)
	eth := &layers.Ethernet{SrcMAC: p.from[:], DstMAC: p.to[:], EthernetType: layers.EthernetTypeIPv6}
	var ip gopacket.SerializableLayer = &layers.IPv6{
		Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolNoNextHeader, SrcIP: source, DstIP: net.ParseIP("2001:db8::99"),
	}
	if four := source.To4(); four != nil {
		ip4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: four, DstIP: net.IP{198, 18, 0, 99}}
		if p.fragment {
			ip4.FragOffset = 100
		}
		if p.options {
			ip4.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 1}}
		}
		eth.EthernetType, ip = layers.EthernetTypeIPv4, ip4
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, eth, ip, gopacket.Payload(make([]byte, 30))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestFilters sends frames from a guest with a filter and to it. At XDP that is by the
// uplink's program, which does not ask for their checksums.
func TestFilters(t *testing.T) {
	const (
		mine, second, last, forged = "198.18.0.1", "198.18.0.2", "198.18.0.8", "198.18.0.9"
		v6                         = "2001:db8::1"
	)
	clean := vswitch.Filter{In: vswitch.FramesIPv4, Out: vswitch.FramesIPv4, Source: macGuest}
	addrs := func(f vswitch.Filter, n int) vswitch.Filter {
		f.Sources = n
		for i := range n {
			f.IPv4[i] = [4]byte{198, 18, 0, byte(i + 1)}
		}
		return f
	}
	one, eight := addrs(clean, 1), addrs(clean, 8)
	noMAC := vswitch.Filter{In: vswitch.FramesAll, Out: vswitch.FramesAll, Source: macGuest}
	dual := addrs(vswitch.Filter{In: vswitch.FramesIPv4 | vswitch.FramesIPv6, Out: vswitch.FramesIPv4 | vswitch.FramesIPv6}, 1)

	from := func(source string) packet { return packet{to: macOther, from: macGuest, source: source} }
	to := func(source string) packet { return packet{to: macGuest, from: macOther, source: source} }
	fragment, options := from(forged), from(forged)
	fragment.fragment, options.options = true, true
	good := from(mine)
	good.fragment, good.options = true, true
	alias := from(mine)
	alias.from = macOutside2 // of the guest too, as far as the bridge knows
	cut := func(n int) []byte { return from(mine).frame(t)[:n] }
	tag := uint32(0x8100<<16 | 10)

	fast, stopped := vswitch.Redirected, vswitch.PassFiltered
	b := newVerdictBed(t)
	if err := b.SetFDB(vswitch.FDBKey{Bridge: bridgeIfindex, MAC: macOutside2}, b.guest, vswitch.OriginStatic); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		filter vswitch.Filter
		packet packet
		raw    []byte // instead of the packet
		gso    uint32
		only   *vswitch.Hook
		in     int // the guest if 0
		want   vswitch.Verdict
	}{
		{name: "its own address", filter: one, packet: from(mine), want: fast},
		{name: "forged address", filter: one, packet: from(forged), want: stopped},
		{name: "no address", filter: one, packet: from("0.0.0.0"), want: stopped},
		{name: "first of eight", filter: eight, packet: from(mine), want: fast},
		{name: "second of eight", filter: eight, packet: from(second), want: fast},
		{name: "last of eight", filter: eight, packet: from(last), want: fast},
		{name: "ninth of eight", filter: eight, packet: from(forged), want: stopped},
		{name: "any address", filter: clean, packet: from(forged), want: fast},
		{name: "forged MAC", filter: one, packet: alias, want: stopped},
		{name: "forged MAC, all kinds", filter: noMAC, packet: alias, want: stopped},
		{name: "any MAC", filter: dual, packet: alias, want: fast},
		{name: "unknown MAC", filter: one, packet: packet{to: macOther, from: macStranger, source: mine}, want: vswitch.PassLearn},
		{name: "IPv6", filter: one, packet: from(v6), want: stopped},
		{name: "IPv6 is allowed", filter: dual, packet: from(v6), want: fast},
		{name: "ARP", filter: one, raw: frame(macOther, macGuest, 0x0806, 60), want: stopped},
		{name: "RARP", filter: one, raw: frame(macOther, macGuest, 0x8035, 60), want: stopped},
		{name: "unknown kind", filter: one, packet: from(""), want: stopped},
		{name: "802.3 length", filter: one, raw: frame(macOther, macGuest, 46, 60), want: stopped},
		{name: "all kinds", filter: noMAC, packet: from(""), want: fast},
		{name: "fragment", filter: one, packet: good, want: fast},
		{name: "fragment with a forged address", filter: one, packet: fragment, want: stopped},
		{name: "options with a forged address", filter: one, packet: options, want: stopped},
		{name: "whole header", filter: one, raw: cut(34), want: fast},
		{name: "header cut short", filter: one, raw: cut(33), only: &hookXDP, want: stopped},
		{name: "to be segmented", filter: one, raw: append(from(mine).frame(t), make([]byte, 3000)...), gso: 1448, only: &hookTC, want: fast},
		{name: "to be segmented, forged", filter: one, raw: append(from(forged).frame(t), make([]byte, 3000)...), gso: 1448, only: &hookTC, want: stopped},
		{name: "with a tag", filter: one, raw: tagged(from(mine).frame(t), tag), only: &hookXDP, want: stopped},
		{name: "with a tag, all kinds", filter: noMAC, raw: tagged(from(mine).frame(t), tag), only: &hookXDP, want: fast},

		{name: "to the guest", filter: one, in: b.other, packet: to(forged), want: fast},
		{name: "to the guest, IPv6", filter: one, in: b.other, packet: to(v6), want: stopped},
		{name: "to the guest, IPv6 is allowed", filter: dual, in: b.other, packet: to(v6), want: fast},
		{name: "to the guest, ARP", filter: one, in: b.other, raw: frame(macGuest, macOther, 0x0806, 60), want: stopped},
		{name: "to the guest, unknown kind", filter: one, in: b.other, packet: to(""), want: stopped},
		{name: "to the guest, all kinds", filter: noMAC, in: b.other, packet: to(""), want: fast},
		{name: "to the guest, with a tag", filter: one, in: b.other, raw: tagged(to(mine).frame(t), tag), only: &hookXDP, want: stopped},
		{name: "from another guest elsewhere", filter: one, in: b.other, packet: packet{to: macAlone, from: macOther, source: v6}, want: fast},
		{name: "no filter", packet: from(forged), want: fast},
	} {
		for _, program := range []string{hooksProgUplinkRxXdp, hooksProgGuestRx} {
			at := hookOf(program)
			if tt.only != nil && *tt.only != at {
				continue
			}
			t.Run(program+"/"+tt.name, func(t *testing.T) {
				c := b.Ports()[b.guest]
				c.Filter = tt.filter
				if err := b.SetPort(c); err != nil {
					t.Fatal(err)
				}
				raw, in := tt.raw, tt.in
				if raw == nil {
					raw = tt.packet.frame(t)
				}
				if in == 0 {
					in = b.guest
				}
				where := counter{in, at}
				before := b.counted(t)[where]
				b.run(t, program, in, raw, tt.gso)
				after := b.counted(t)[where]
				got := map[vswitch.Verdict]uint64{}
				for v, n := range after {
					if n != before[v] {
						got[v] = n - before[v]
					}
				}
				if diff := cmp.Diff(map[vswitch.Verdict]uint64{tt.want: 1}, got); diff != "" {
					t.Errorf("verdicts (-want +got):\n%s", diff)
				}
			})
		}
	}
}
