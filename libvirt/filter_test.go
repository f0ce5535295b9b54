package libvirt

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestFrameRules(t *testing.T) {
	mac := testMAC(1)
	addrs := func(list ...string) (a []netip.Addr) {
		for _, s := range list {
			a = append(a, netip.MustParseAddr(s))
		}
		return a
	}
	all := FrameRule{Kinds: AllKinds}
	ips := map[string][]string{"IP": {"198.18.0.2", "198.18.0.1", "198.18.0.2"}, "IPV6": {"2001:db8::1"}}
	for _, tt := range []struct {
		filter     string
		parameters map[string][]string
		want       FrameRules
		unknown    bool
	}{
		{filter: "no-mac-spoofing", want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds, SourceMAC: &mac}, ToGuest: all}},
		{filter: "no-ip-spoofing", parameters: ips, want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds, IPv4Sources: addrs("198.18.0.1", "198.18.0.2")}, ToGuest: all}},
		{filter: "no-ip-spoofing", want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds &^ IPv4}, ToGuest: all}},
		{filter: "no-ip-spoofing", parameters: map[string][]string{"IP": {"198.18.0.1", "everything"}}, want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds &^ IPv4}, ToGuest: all}},
		{filter: "no-ip-spoofing", parameters: map[string][]string{"IP": {"2001:db8::1"}}, want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds &^ IPv4}, ToGuest: all}},
		{filter: "no-ipv6-spoofing", parameters: ips, want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds, IPv6Sources: addrs("2001:db8::1")}, ToGuest: all}},
		{filter: "no-arp-spoofing", parameters: ips, want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds, ARPSenderMAC: &mac, ARPSenderIPs: addrs("198.18.0.1", "198.18.0.2")}, ToGuest: all}},
		{filter: "no-arp-spoofing", want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds &^ ARP, ARPSenderMAC: &mac}, ToGuest: all}},
		{filter: "allow-ipv4", want: FrameRules{FromGuest: all, ToGuest: all}},
		{filter: "no-other-l2-traffic"},
		{filter: "qemu-announce-self", want: FrameRules{FromGuest: FrameRule{Kinds: AllKinds &^ RARP}, ToGuest: FrameRule{Kinds: AllKinds &^ RARP}}},
		{filter: "clean-traffic", parameters: ips, want: FrameRules{
			FromGuest: FrameRule{Kinds: IPv4 | ARP, SourceMAC: &mac, IPv4Sources: addrs("198.18.0.1", "198.18.0.2"), ARPSenderMAC: &mac, ARPSenderIPs: addrs("198.18.0.1", "198.18.0.2")},
			ToGuest:   FrameRule{Kinds: IPv4 | ARP},
		}},
		{filter: "clean-traffic", want: FrameRules{FromGuest: FrameRule{SourceMAC: &mac, ARPSenderMAC: &mac}, ToGuest: FrameRule{Kinds: IPv4 | ARP}}},
		{filter: "clean-traffic-gateway", unknown: true},
		{filter: "no-ip-multicast", unknown: true},
		{filter: "", unknown: true},
	} {
		got, known := FilterRef{Name: tt.filter, Parameters: tt.parameters}.FrameRules(mac)
		if known == tt.unknown {
			t.Errorf("%s: known %v", tt.filter, known)
			continue
		}
		if d := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{})); !tt.unknown && d != "" {
			t.Errorf("%s %v (-want +got):\n%s", tt.filter, tt.parameters, d)
		}
	}
}
