package libvirt

import (
	"fmt"
	"strings"
	"testing"

	"github.com/digitalocean/go-libvirt"
)

// words gives what is known of a filter, or why it is not.
func (f FilterRef) words() string {
	switch {
	case f.Unclear != "":
		return f.Unclear
	case f.Known == nil:
		return "not asked"
	case f.Known.Open:
		return "open"
	}
	return f.Known.Frames.String()
}

// The filters that libvirt brings along, as a real one tells of them.
func TestFiltersOfLibvirt(t *testing.T) {
	d := startLibvirtd(t)
	target, err := ParseTarget(d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	s, err := target.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ips := map[string][]string{"IP": {"198.18.0.2", "198.18.0.1", "198.18.0.2"}, "IPV6": {"2001:db8::1"}, "GATEWAY_MAC": {"52:54:00:00:00:fe"}, "DHCPSERVER": {"198.18.0.3"}}
	const (
		learned = "libvirt finds out the guest's address by itself: name it in <filterref> by <parameter name='IP' value='…'/>"
		mac     = "52:54:00:00:00:01"
		clean   = "IPv4 of " + mac + " with source address 198.18.0.1, 198.18.0.2 in"
		noV4In  = "IPv6 in, all frames out"
	)
	for _, tt := range []struct {
		filter     string
		parameters map[string][]string
		want       string
	}{
		{"clean-traffic", ips, clean + ", IPv4 out"},
		{"clean-traffic", nil, learned},
		{"clean-traffic", map[string][]string{"CTRL_IP_LEARNING": {"dhcp"}}, learned},
		{"clean-traffic", map[string][]string{"IP": {"198.18.0.1"}, "MAC": {mac}}, "it is given another address than the interface's"},
		{"clean-traffic", map[string][]string{"IP": {"2001:db8::1"}}, "no frames in, IPv4 out"},
		{"no-mac-spoofing", nil, "all frames of " + mac + " in, all frames out"},
		{"no-ip-spoofing", ips, "IPv4 and IPv6 with source address 198.18.0.1, 198.18.0.2 in, all frames out"},
		{"no-ip-spoofing", nil, learned},
		{"no-ipv6-spoofing", ips, "IPv4 in, all frames out"},
		{"no-ipv6-spoofing", nil, "it wants a parameter IPV6, which <filterref> does not have"},
		{"no-arp-spoofing", ips, "IPv4 and IPv6 in, all frames out"},
		{"no-arp-mac-spoofing", nil, "IPv4 and IPv6 in, all frames out"},
		{"no-arp-ip-spoofing", ips, "IPv4 and IPv6 in, all frames out"},
		{"allow-arp", nil, "open"},
		{"allow-ipv4", nil, "open"},
		{"allow-ipv6", nil, "open"},
		{"allow-incoming-ipv4", nil, "open"},
		{"allow-dhcp", nil, "open"},
		{"allow-dhcp-server", ips, "open"},
		{"no-other-l2-traffic", nil, "no frames in, no frames out"},
		{"no-other-rarp-traffic", nil, "IPv4 and IPv6 in, IPv4 and IPv6 out"},
		{"qemu-announce-self", nil, "IPv4 and IPv6 in, IPv4 and IPv6 out"},
		{"no-mac-broadcast", nil, "open"},
		{"no-ip-multicast", nil, noV4In},
		{"clean-traffic-gateway", ips, "no frames in, no frames out"},
		{"shop", nil, "libvirt does not tell what it says: Network filter not found: no nwfilter with matching name 'shop'"},
	} {
		f := &FilterRef{Name: tt.filter, Parameters: tt.parameters}
		if err := s.Filters(Domain{Interfaces: []Interface{{MAC: guestMAC(1), Filter: f}}}); err != nil {
			t.Fatal(err)
		}
		if got := f.words(); got != tt.want {
			t.Errorf("%s with %v: %s\nwant %s", tt.filter, tt.parameters, got, tt.want)
		}
	}

	// What an operator makes of the name counts, not the name.
	c, err := d.Connect(libvirt.QEMUSystem)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Disconnect()
	old, err := c.NwfilterLookupByName("no-mac-spoofing")
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.NwfilterGetXMLDesc(old, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.NwfilterDefineXML(strings.Replace(text, "</filter>", "<rule action='drop' direction='in'><mac/></rule></filter>", 1)); err != nil {
		t.Fatal(err)
	}
	f := &FilterRef{Name: "clean-traffic", Parameters: ips}
	if err := s.Filters(Domain{Interfaces: []Interface{{MAC: guestMAC(1), Filter: f}}}); err != nil {
		t.Fatal(err)
	}
	if got, want := f.words(), clean+", no frames out"; got != want {
		t.Errorf("with a part that was redefined: %s\nwant %s", got, want)
	}
}

// Filters of an operator's own.
func TestFilterRules(t *testing.T) {
	const mac = "52:54:00:00:00:01"
	drop := "<rule action='drop' direction='inout' priority='1000'/>"
	accept := func(match string) string {
		return "<filter name='f' chain='root'><rule action='accept' direction='out'>" + match + "</rule>" + drop + "</filter>"
	}
	from := func(kinds string) string { return kinds + " in, no frames out" }
	for _, tt := range []struct {
		name   string
		filter string // f
		part   string // g
		vars   map[string][]string
		want   string
	}{
		{name: "no rules", filter: "<filter name='f'/>", want: "open"},
		{name: "all", filter: accept(""), want: from("all frames")},
		{name: "by type", filter: accept("<mac protocolid='0x86dd'/>"), want: from("IPv6")},
		{name: "of an unknown type", filter: accept("<mac protocolid='odd'/>"), want: from("no frames")},
		{name: "own address", filter: accept("<mac srcmacaddr='$MAC'/>"), want: from("all frames of " + mac)},
		{name: "own address as it is", filter: accept("<mac srcmacaddr='" + mac + "' protocolid='ipv4'/>"), want: from("IPv4 of " + mac)},
		{name: "another address", filter: accept("<mac srcmacaddr='52:54:00:00:00:02'/>"), want: from("no frames")},
		{name: "a masked address", filter: accept("<mac srcmacaddr='$MAC' srcmacmask='ff:ff:ff:00:00:00'/>"), want: from("no frames")},
		{name: "to some address", filter: accept("<mac dstmacaddr='52:54:00:00:00:02'/>"), want: from("no frames")},
		{name: "inverted", filter: accept("<mac match='no' srcmacaddr='52:54:00:00:00:02'/>"), want: from("no frames")},
		{name: "an IPv4 address", filter: accept("<ip srcipaddr='198.18.0.1'/>"), want: from("IPv4 with source address 198.18.0.1")},
		{name: "a network", filter: accept("<ip srcipaddr='198.18.0.0' srcipmask='24'/>"), want: from("no frames")},
		{name: "a port", filter: accept("<ip srcipaddr='198.18.0.1' protocol='udp' srcportstart='53'/>"), want: from("no frames")},
		{name: "a destination", filter: accept("<ip srcipaddr='198.18.0.1' dstipaddr='198.18.0.2'/>"), want: from("no frames")},
		{name: "a list", filter: accept("<ip srcipaddr='$A'/>"), vars: map[string][]string{"A": {"198.18.0.3", "198.18.0.2"}}, want: from("IPv4 with source address 198.18.0.2, 198.18.0.3")},
		{
			name: "more than there is room for", filter: accept("<ip srcipaddr='$A'/>"),
			vars: map[string][]string{"A": {"198.18.0.9", "198.18.0.8", "198.18.0.7", "198.18.0.6", "198.18.0.5", "198.18.0.4", "198.18.0.3", "198.18.0.2", "198.18.0.1"}},
			want: from("IPv4 with source address 198.18.0.1, 198.18.0.2, 198.18.0.3, 198.18.0.4, 198.18.0.5, 198.18.0.6, 198.18.0.7, 198.18.0.8"),
		},
		{name: "an element of a list", filter: accept("<ip srcipaddr='$A[1]'/>"), vars: map[string][]string{"A": {"198.18.0.3", "198.18.0.2"}}, want: from("no frames")},
		{
			name: "two lists side by side", filter: accept("<ip srcipaddr='$A' srcmacaddr='$B'/>"),
			vars: map[string][]string{"A": {"198.18.0.3", "198.18.0.2"}, "B": {mac, "52:54:00:00:00:02"}}, want: from("no frames"),
		},
		{name: "a list and an address", filter: accept("<ip srcipaddr='$A' srcmacaddr='$MAC'/>"), vars: map[string][]string{"A": {"198.18.0.3", "198.18.0.2"}}, want: from("IPv4 of " + mac + " with source address 198.18.0.2, 198.18.0.3")},
		{name: "IPv6 of one address", filter: accept("<ipv6 srcipaddr='2001:db8::1'/>"), want: from("no frames")},
		{name: "without a value", filter: accept("<ip srcipaddr='$A'/>"), want: "it wants a parameter A, which <filterref> does not have"},
		{name: "with a comment", filter: accept("<ip comment='x' match='yes'/>"), want: from("IPv4")},

		{name: "the smaller priority first", filter: "<filter name='f'><rule action='accept' direction='inout' priority='2'/><rule action='drop' direction='inout' priority='-1'/></filter>", want: "no frames in, no frames out"},
		{name: "the same priority", filter: "<filter name='f'><rule action='accept' direction='inout'/><rule action='drop' direction='inout'/></filter>", want: "open"},
		{name: "perhaps dropped first", filter: "<filter name='f'><rule action='drop' direction='out'><ip protocol='tcp'/></rule><rule action='accept' direction='inout'/></filter>", want: "IPv6 in, all frames out"},
		{name: "perhaps returned", filter: "<filter name='f'><rule action='return' direction='inout'><ip protocol='tcp'/></rule>" + drop + "</filter>", want: "no frames in, no frames out"},
		{name: "returned to the bridge", filter: "<filter name='f'><rule action='return' direction='inout'><ip/></rule>" + drop + "</filter>", want: "IPv4 in, IPv4 out"},
		{name: "goes on", filter: "<filter name='f'><rule action='continue' direction='inout'/>" + drop + "</filter>", want: "no frames in, no frames out"},
		{name: "rejected", filter: "<filter name='f'><rule action='reject' direction='out'><ipv6/></rule></filter>", want: "IPv4 in, all frames out"},

		{name: "a chain", filter: "<filter name='f' chain='ipv6-x' priority='-1'>" + drop + "</filter>", want: "IPv4 in, IPv4 out"},
		{name: "a chain of all frames", filter: "<filter name='f' chain='mac' priority='-1'>" + drop + "</filter>", want: "no frames in, no frames out"},
		{name: "a chain of multicast", filter: "<filter name='f' chain='stp' priority='-1'>" + drop + "</filter>", want: "open"},
		{
			name: "a chain before the root's rules", filter: "<filter name='f'><filterref filter='g'/><rule action='accept' direction='inout' priority='5'/></filter>",
			part: "<filter name='g' chain='ipv4' priority='5'>" + drop + "</filter>", want: "IPv6 in, IPv6 out",
		},
		{
			name: "a chain behind them", filter: "<filter name='f'><filterref filter='g'/><rule action='accept' direction='inout' priority='4'/></filter>",
			part: "<filter name='g' chain='ipv4' priority='5'>" + drop + "</filter>", want: "open",
		},
		{
			name: "returned from a chain", filter: "<filter name='f'><filterref filter='g'/>" + drop + "</filter>",
			part: "<filter name='g' chain='ipv4' priority='5'><rule action='return' direction='inout'/></filter>", want: "no frames in, no frames out",
		},
		{
			name: "accepted in a chain", filter: "<filter name='f'><filterref filter='g'/>" + drop + "</filter>",
			part: "<filter name='g' chain='ipv4' priority='5'><rule action='accept' direction='inout'/></filter>", want: "IPv4 in, IPv4 out",
		},
		{
			name: "chains in no order", filter: "<filter name='f' chain='mac' priority='5'><filterref filter='g'/>" + drop + "</filter>",
			part: "<filter name='g' chain='ipv4' priority='5'><rule action='accept' direction='inout'/></filter>", want: "no frames in, no frames out",
		},
		{
			name: "a chain of two priorities", filter: "<filter name='f' chain='ipv4' priority='4'>" + drop + "<filterref filter='g'/></filter>",
			part: "<filter name='g' chain='ipv4' priority='5'>" + drop + "</filter>", want: "its chain ipv4 has priorities 4 and 5",
		},
		{
			name: "a part's rules before", filter: "<filter name='f'><filterref filter='g'/><rule action='accept' direction='inout'/></filter>",
			part: "<filter name='g'><rule action='drop' direction='out'><ip protocol='tcp'/></rule></filter>", want: "IPv6 in, all frames out",
		},
		{
			name: "a part's rules behind", filter: "<filter name='f'><rule action='accept' direction='inout'/><filterref filter='g'/></filter>",
			part: "<filter name='g'><rule action='drop' direction='out'><ip protocol='tcp'/></rule></filter>", want: "open",
		},
		{name: "part of itself", filter: "<filter name='f'><filterref filter='f'/></filter>", want: "open"},
		{name: "a part that is not there", filter: "<filter name='f'><filterref filter='h'/></filter>", want: "of its part h: no filter h"},

		{name: "connections", filter: accept("<tcp dstportstart='22'/>"), want: "it has rules for <tcp>, which the fast path can't stand in for"},
		{name: "all of IPv6", filter: accept("<all-ipv6/>"), want: "it has rules for <all-ipv6>, which the fast path can't stand in for"},
		{name: "a new protocol", filter: accept("<warp/>"), want: "it has rules for <warp>, which the fast path can't stand in for"},
		{name: "two protocols", filter: accept("<ip/><ipv6/>"), want: "a rule has 2 protocols"},
		{name: "a new element", filter: "<filter name='f'><limit/></filter>", want: "<limit> in it is not known"},
		{name: "a new chain", filter: "<filter name='f' chain='warp'/>", want: "its chain warp is not known"},
		{name: "a new action", filter: "<filter name='f'><rule action='slow' direction='in'/></filter>", want: `action "slow" of a rule is not known`},
		{name: "a new direction", filter: "<filter name='f'><rule action='drop' direction='up'/></filter>", want: `direction "up" of a rule is not known`},
		{name: "an odd priority", filter: "<filter name='f'><rule action='drop' direction='in' priority='high'/></filter>", want: `its priority "high" is no number`},
		{name: "a part with parameters", filter: "<filter name='f'><filterref filter='g'><parameter name='IP' value='198.18.0.1'/></filterref></filter>", part: "<filter name='g'/>", want: "it gives filter g parameters of its own"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := FilterRef{Name: "f", Parameters: tt.vars}
			f.resolve(guestMAC(1), func(name string) (filterDefinition, error) {
				text, ok := map[string]string{"f": tt.filter, "g": tt.part}[name]
				if !ok {
					return filterDefinition{}, fmt.Errorf("no filter %s", name)
				}
				return parseFilter(text)
			})
			if got := f.words(); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}
