package policy

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

func TestMain(m *testing.M) { lab.Main(m) }

var (
	bridges = map[int]vswitch.Bridge{1: {Ifindex: 1, Name: "br0"}, 2: {Ifindex: 2, Name: "br1"}}
	ports   = map[int]vswitch.Port{
		10: {Ifindex: 10, Name: "bond0", Bridge: 1, Role: vswitch.RoleUplink},
		11: {Ifindex: 11, Name: "vnet0", Bridge: 1, Role: vswitch.RoleGuest},
		20: {Ifindex: 20, Name: "vnet1", Bridge: 2, Role: vswitch.RoleGuest},
	}
)

func hookedAt(family uint8, hook uint32, devices ...deviceMatch) []chain {
	return []chain{{family: family, table: "t", hook: hook, effect: effect{chain: "c", rules: true}, devices: devices}}
}

func TestReasons(t *testing.T) {
	all := calls{true, true, true}
	both, neither := []int{1, 2}, []int(nil)
	for _, tt := range []struct {
		name      string
		found     found
		held      []int // which have a reason
		direction vswitch.Direction
		code      vswitch.HoldCode
		text      string // of br0's or its port's
	}{
		{name: "nothing", found: found{calls: all}, held: neither},
		{
			name: "bridge forward", found: found{chains: hookedAt(unix.NFPROTO_BRIDGE, unix.NF_INET_FORWARD)},
			held: both, direction: vswitch.Both, code: vswitch.HoldNftables,
			text: "nftables table bridge t decides over bridged frames: chain c has rules; take the rules out (see 'nft list table bridge t'), or name br0 under accept_bypass in the configuration if its frames may go past it",
		},
		{name: "bridge input", found: found{chains: hookedAt(unix.NFPROTO_BRIDGE, unix.NF_INET_LOCAL_IN)}, held: neither},
		{name: "bridge output", found: found{chains: hookedAt(unix.NFPROTO_BRIDGE, unix.NF_INET_LOCAL_OUT)}, held: neither},
		{name: "ip without br_netfilter", found: found{chains: hookedAt(unix.NFPROTO_IPV4, unix.NF_INET_FORWARD)}, held: neither},
		{name: "ip with ip6tables alone", found: found{chains: hookedAt(unix.NFPROTO_IPV4, unix.NF_INET_FORWARD), calls: calls{ip6: true}}, held: neither},
		{
			name: "ip6", found: found{chains: hookedAt(unix.NFPROTO_IPV6, unix.NF_INET_POST_ROUTING), calls: all},
			held: both, direction: vswitch.Both, code: vswitch.HoldNftables,
			text: "nftables table ip6 t decides over bridged IP packets, by br_netfilter: chain c has rules; take the rules out (see 'nft list table ip6 t'), keep br_netfilter from them by 'sysctl net.bridge.bridge-nf-call-ip6tables=0' (and 'ip link set br0 type bridge nf_call_ip6tables 0'), or name br0 under accept_bypass in the configuration if its frames may go past it",
		},
		{name: "inet with ip6tables alone", found: found{chains: hookedAt(unix.NFPROTO_INET, unix.NF_INET_PRE_ROUTING), calls: calls{ip6: true}}, held: both, direction: vswitch.Both, code: vswitch.HoldNftables},
		{name: "inet input", found: found{chains: hookedAt(unix.NFPROTO_INET, unix.NF_INET_LOCAL_IN), calls: all}, held: neither},
		{
			name:  "ip with one bridge's br_netfilter",
			found: found{chains: hookedAt(unix.NFPROTO_IPV4, unix.NF_INET_FORWARD), calling: map[int]calls{2: {ip4: true}}},
			held:  []int{2}, direction: vswitch.Both, code: vswitch.HoldNftables,
		},
		{
			name: "ingress", found: found{chains: hookedAt(unix.NFPROTO_NETDEV, unix.NF_NETDEV_INGRESS, deviceMatch{name: "vnet0"})},
			held: []int{11}, direction: vswitch.In, code: vswitch.HoldNftables,
			text: "nftables table netdev t decides over frames of device vnet0: chain c has rules; take the chain off the device (see 'nft list table netdev t'), or name br0 under accept_bypass in the configuration if its frames may go past it",
		},
		{
			name: "ingress by prefix", found: found{chains: hookedAt(unix.NFPROTO_NETDEV, unix.NF_NETDEV_INGRESS, deviceMatch{"vnet", true})},
			held: []int{11, 20}, direction: vswitch.In, code: vswitch.HoldNftables,
		},
		{
			name:  "ingress of a bond's device",
			found: found{chains: hookedAt(unix.NFPROTO_INET, ingressOfInet, deviceMatch{name: "eth0"}), below: map[string][]int{"eth0": {10}}},
			held:  []int{10}, direction: vswitch.In, code: vswitch.HoldNftables,
		},
		{
			name:  "egress of a bond's device", // which the bond sends by
			found: found{chains: hookedAt(unix.NFPROTO_NETDEV, unix.NF_NETDEV_EGRESS, deviceMatch{name: "eth0"}), below: map[string][]int{"eth0": {10}}},
			held:  neither,
		},
		{
			name: "egress", found: found{chains: hookedAt(unix.NFPROTO_NETDEV, unix.NF_NETDEV_EGRESS, deviceMatch{name: "bond0"})},
			held: []int{10}, direction: vswitch.Out, code: vswitch.HoldNftables,
		},
		{name: "ingress of the bridge itself", found: found{chains: hookedAt(unix.NFPROTO_NETDEV, unix.NF_NETDEV_INGRESS, deviceMatch{name: "br0"})}, held: neither},
		{name: "ingress of no device", found: found{chains: hookedAt(unix.NFPROTO_NETDEV, unix.NF_NETDEV_INGRESS)}, held: neither},
		{
			name:  "ebtables",
			found: found{tables: []table{{toolEB, "filter", []effect{{"FORWARD", true, true, nil}}}}},
			held:  both, direction: vswitch.Both, code: vswitch.HoldEbtables,
			text: "ebtables table filter decides over bridged frames: chain FORWARD has rules and drops the rest; take the rules out (see 'ebtables -t filter -L'), or name br0 under accept_bypass in the configuration if its frames may go past it",
		},
		{
			name:  "ebtables for a port",
			found: found{tables: []table{{toolEB, "nat", []effect{{"PREROUTING", true, false, []portMatch{{deviceMatch: deviceMatch{name: "vnet0"}, direction: vswitch.In}}}, {"POSTROUTING", true, false, []portMatch{{deviceMatch: deviceMatch{name: "vnet0"}, direction: vswitch.Out}}}}}}},
			held:  []int{11}, direction: vswitch.Both, code: vswitch.HoldEbtables,
			text: "ebtables table nat has rules for vnet0: chain PREROUTING has rules, chain POSTROUTING has rules; take them out (see 'ebtables -t nat -L'; libvirt's <filterref> makes such), or name br0 under accept_bypass in the configuration if its frames may go past it",
		},
		{
			name:  "ebtables for ports",
			found: found{tables: []table{{toolEB, "nat", []effect{{"PREROUTING", true, false, []portMatch{{deviceMatch: deviceMatch{"vnet", true}, direction: vswitch.In}}}}}}},
			held:  []int{11, 20}, direction: vswitch.In, code: vswitch.HoldEbtables,
		},
		{
			name:  "ebtables for a device elsewhere",
			found: found{tables: []table{{toolEB, "nat", []effect{{"PREROUTING", true, false, []portMatch{{deviceMatch: deviceMatch{name: "eth9"}, direction: vswitch.In}}}}}}},
			held:  neither,
		},
		{
			name:  "nftables for a port",
			found: found{chains: []chain{{family: unix.NFPROTO_BRIDGE, table: "t", hook: unix.NF_INET_FORWARD, effect: effect{"c", true, false, []portMatch{{ifindex: 20, direction: vswitch.Out}}}}}},
			held:  []int{20}, direction: vswitch.Out, code: vswitch.HoldNftables,
			text: "nftables table bridge t has rules for vnet1: chain c has rules; take them out (see 'nft list table bridge t'; libvirt's <filterref> makes such), or name br1 under accept_bypass in the configuration if its frames may go past it",
		},
		{
			name:  "iptables",
			found: found{tables: []table{{toolIP4, "raw", []effect{{"PREROUTING", true, false, nil}}}, {toolIP6, "raw", nil}}, calls: calls{ip4: true}},
			held:  both, direction: vswitch.Both, code: vswitch.HoldIptables,
			text: "iptables table raw decides over bridged IPv4 packets, by br_netfilter: chain PREROUTING has rules; take the rules out (see 'iptables -t raw -L'), keep br_netfilter from them by 'sysctl net.bridge.bridge-nf-call-iptables=0' (and 'ip link set br0 type bridge nf_call_iptables 0'), or name br0 under accept_bypass in the configuration if its frames may go past it",
		},
		{
			name:  "arptables",
			found: found{tables: []table{{toolARP, "filter", []effect{{"FORWARD", false, true, nil}}}}, calling: map[int]calls{1: {arp: true}}},
			held:  []int{1}, direction: vswitch.Both, code: vswitch.HoldIptables,
		},
		{
			name: "qdisc", found: found{qdiscs: []qdisc{{11, "htb", "1:"}}}, held: []int{11}, direction: vswitch.OutXDP, code: vswitch.HoldQdisc,
			text: "qdisc htb 1: limits or drops frames to vnet0, which XDP goes past; take it off (see 'tc qdisc show dev vnet0'; libvirt's <bandwidth> makes it), or name br0 under accept_bypass in the configuration if its frames may go past it",
		},
		{
			name: "unread", found: found{unread: []error{errors.New("reading nftables: no")}}, held: both, direction: vswitch.Both, code: vswitch.HoldUnread,
			text: "what decides over bridged frames is not known: reading nftables: no; mend that, or name br0 under accept_bypass in the configuration if its frames may go past it",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.found.reasons(bridges, ports, nil)
			held := map[int]bool{}
			for _, ifindex := range tt.held {
				held[ifindex] = true
				if len(got[ifindex]) != 1 {
					t.Fatalf("reasons are %+v, want one at %v", got, tt.held)
				}
				r := got[ifindex][0]
				if r.Direction != tt.direction || r.Code != tt.code {
					t.Errorf("%d is held for %q in %v, want %q in %v", ifindex, r.Code, r.Direction, tt.code, tt.direction)
				}
			}
			for ifindex, r := range got {
				if !held[ifindex] {
					t.Errorf("%d is held for %+v", ifindex, r)
				}
			}
			if tt.text != "" && got[tt.held[0]][0].Text != tt.text {
				t.Errorf("reason is\n%s\nwant\n%s", got[tt.held[0]][0].Text, tt.text)
			}
			// accept_bypass makes remarks of a bridge's reasons and its ports', and of no other's.
			for ifindex, reasons := range tt.found.reasons(bridges, ports, []string{"br0"}) {
				want := tt.direction
				if ifindex == 1 || ports[ifindex].Bridge == 1 {
					want = 0
				}
				if r := reasons[0]; r.Direction != want || r.Code != tt.code {
					t.Errorf("with br0 accepted, %d is held for %q in %v, want %q in %v", ifindex, r.Code, r.Direction, tt.code, want)
				}
			}
		})
	}
}

// Two rules of a table are one reason, those of two tables two.
func TestReasonsByTable(t *testing.T) {
	c := func(table, name string, drops bool) chain {
		return chain{family: unix.NFPROTO_BRIDGE, table: table, hook: unix.NF_INET_FORWARD, effect: effect{chain: name, rules: !drops, drops: drops}}
	}
	f := found{chains: []chain{c("a", "x", false), c("a", "y", true), c("b", "z", false)}}
	got := f.reasons(bridges, nil, []string{"br0"})[1]
	want := []vswitch.HoldReason{
		{Code: vswitch.HoldNftables, Text: "nftables table bridge a decides over bridged frames: chain x has rules, chain y drops everything; the fast path goes past it, as accept_bypass says for br0"},
		{Code: vswitch.HoldNftables, Text: "nftables table bridge b decides over bridged frames: chain z has rules; the fast path goes past it, as accept_bypass says for br0"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("reasons (-want +got):\n%s", d)
	}
}

// A host is a namespace with a bridge.
type host struct {
	*lab.Node
	bridges map[int]vswitch.Bridge
	ports   map[int]vswitch.Port
}

func newHost(t testing.TB, taps int) *host {
	t.Helper()
	n, err := lab.NewNode("host")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Node: n, bridges: map[int]vswitch.Bridge{}, ports: map[int]vswitch.Port{}}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Netlink().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}); err != nil {
		t.Fatal(err)
	}
	bridge, err := n.Ifindex("br0")
	if err != nil {
		t.Fatal(err)
	}
	h.bridges[bridge] = vswitch.Bridge{Ifindex: bridge, Name: "br0"}
	for i := range taps {
		name := fmt.Sprintf("vnet%d", i)
		tap, err := lab.OpenTap(n, name, lab.TapOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tap.Close() })
		if err := n.SetUp(name); err != nil {
			t.Fatal(err)
		}
		ifindex, err := n.Ifindex(name)
		if err != nil {
			t.Fatal(err)
		}
		h.ports[ifindex] = vswitch.Port{Ifindex: ifindex, Name: name, Bridge: bridge, Role: vswitch.RoleGuest}
	}
	return h
}

func (h *host) holds(t testing.TB, r *Reader) (holds map[int][]vswitch.HoldReason) {
	t.Helper()
	if err := h.Do(func() error { holds = r.Holds(h.bridges, h.ports); return nil }); err != nil {
		t.Fatal(err)
	}
	return holds
}

// nft changes the host's ruleset.
func (h *host) nft(t testing.TB, change func(*nftables.Conn)) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(h.NetNS()))
	if err != nil {
		t.Fatal(err)
	}
	change(c)
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkHolds is what a look costs on a host with 256 guests that is filtered as
// one with containers is: by many chains, none of which bridged frames meet.
func BenchmarkHolds(b *testing.B) {
	h := newHost(b, 256)
	for i := range 1000 {
		h.nft(b, func(c *nftables.Conn) {
			table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "containers"})
			c.AddChain(&nftables.Chain{Name: fmt.Sprintf("chain%d", i), Table: table})
		})
	}
	for name, reader := range map[string]func(*Reader) *Reader{
		"unchanged": func(r *Reader) *Reader { return r },
		"changed":   func(*Reader) *Reader { return NewReader(Options{}) },
	} {
		b.Run(name, func(b *testing.B) {
			r := NewReader(Options{})
			// The time on a busy machine says little.
			began := cpuTime(b)
			defer func() { b.ReportMetric(float64(cpuTime(b)-began)/float64(b.N), "cpu-ns/op") }()
			if err := h.Do(func() error {
				for b.Loop() {
					r = reader(r)
					if holds := r.Holds(h.bridges, h.ports); len(holds) > 0 {
						return fmt.Errorf("held for %v", holds)
					}
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// cpuTime gives the nanoseconds that the program has used of CPUs.
func cpuTime(b *testing.B) int64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
