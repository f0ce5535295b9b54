package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// calls says which rules br_netfilter runs over bridged frames as if they were
// routed.
type calls struct{ ip4, ip6, arp bool }

func (c calls) or(d calls) calls { return calls{c.ip4 || d.ip4, c.ip6 || d.ip6, c.arp || d.arp} }

const sysctls = "/proc/sys/net/bridge/bridge-nf-call-"

// readCalls gives what holds for all bridges of the namespace: since Linux 5.3
// each has its own sysctls. Without br_netfilter there is none.
func readCalls() (c calls, err error) {
	for _, s := range []struct {
		name string
		on   *bool
	}{{"iptables", &c.ip4}, {"ip6tables", &c.ip6}, {"arptables", &c.arp}} {
		text, err := os.ReadFile(sysctls + s.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return c, fmt.Errorf("reading what br_netfilter does: %w", err)
		}
		*s.on = strings.TrimSpace(string(text)) != "0"
	}
	return c, nil
}

// wanted gives what it matters of br_netfilter whether it does: that for which
// there are rules.
func (f *found) wanted() (rules calls) {
	for _, t := range f.tables {
		switch t.tool {
		case toolIP4:
			rules.ip4 = true
		case toolIP6:
			rules.ip6 = true
		case toolARP:
			rules.arp = true
		}
	}
	for _, c := range f.chains {
		rules.ip4 = rules.ip4 || c.onBridges(calls{ip4: true})
		rules.ip6 = rules.ip6 || c.onBridges(calls{ip6: true})
	}
	return rules
}

// readBridgeCalls gives what br_netfilter does at single bridges.
func readBridgeCalls(bridges map[int]vswitch.Bridge) (map[int]calls, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for bridges: %w", err)
	}
	defer c.Close()
	found := map[int]calls{}
	for ifindex, br := range bridges {
		request, err := binary.Append(nil, binary.NativeEndian, unix.IfInfomsg{Index: int32(ifindex)})
		if err != nil {
			return nil, err
		}
		answers, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request},
			Data:   request,
		})
		if errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading what br_netfilter does at %s: %w", br.Name, err)
		}
		for _, m := range answers {
			if found[ifindex], err = parseBridgeCalls(m.Data); err != nil {
				return nil, fmt.Errorf("reading what br_netfilter does at %s: %w", br.Name, err)
			}
		}
	}
	return found, nil
}

func parseBridgeCalls(data []byte) (c calls, err error) {
	if len(data) < unix.SizeofIfInfomsg {
		return c, fmt.Errorf("%d bytes are no message", len(data))
	}
	ad, err := netlink.NewAttributeDecoder(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return c, err
	}
	settings := func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			switch ad.Type() {
			case unix.IFLA_BR_NF_CALL_IPTABLES:
				c.ip4 = ad.Uint8() != 0
			case unix.IFLA_BR_NF_CALL_IP6TABLES:
				c.ip6 = ad.Uint8() != 0
			case unix.IFLA_BR_NF_CALL_ARPTABLES:
				c.arp = ad.Uint8() != 0
			}
		}
		return nil
	}
	for ad.Next() {
		if ad.Type() == unix.IFLA_LINKINFO {
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					if ad.Type() == unix.IFLA_INFO_DATA {
						ad.Nested(settings)
					}
				}
				return nil
			})
		}
	}
	return c, ad.Err()
}

// switches names what makes br_netfilter run a family's rules.
func (c calls) switches(family uint8) (names []string) {
	if c.ip4 && family != unix.NFPROTO_IPV6 {
		names = append(names, "iptables")
	}
	if c.ip6 && family != unix.NFPROTO_IPV4 {
		names = append(names, "ip6tables")
	}
	return names
}

// switchOff says how to keep br_netfilter from running rules, by the names of its
// switches. The namespace's and the bridge's own must both be off.
func switchOff(bridge string, names ...string) string {
	if len(names) == 0 {
		return ""
	}
	var all, own string
	for _, n := range names {
		all += " net.bridge.bridge-nf-call-" + n + "=0"
		own += " nf_call_" + n + " 0"
	}
	return fmt.Sprintf(", keep br_netfilter from them by 'sysctl%s' (and 'ip link set %s type bridge%s')", all, bridge, own)
}

// A judgement is what a tool's rules mean for a bridge.
type judgement struct {
	code     vswitch.HoldCode
	frames   string   // which frames
	switches []string // of br_netfilter
}

// tool judges the rules of one of the older tools, and says whether bridged frames
// meet them.
func (c calls) tool(name string) (judgement, bool) {
	switch name {
	case toolIP4:
		return judgement{vswitch.HoldIptables, "IPv4 packets, by br_netfilter", []string{"iptables"}}, c.ip4
	case toolIP6:
		return judgement{vswitch.HoldIptables, "IPv6 packets, by br_netfilter", []string{"ip6tables"}}, c.ip6
	case toolARP:
		return judgement{vswitch.HoldIptables, "ARP packets, by br_netfilter", []string{"arptables"}}, c.arp
	}
	return judgement{vswitch.HoldEbtables, "frames", nil}, true
}
