package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/tapswitch/tapswitch/vswitch"
)

// Rules that are libvirt's for the filter of a tap are told from all others.
func TestLibvirtFilters(t *testing.T) {
	h := newHost(t, 2)
	r := NewReader(Options{})
	index := map[string]int{}
	for ifindex, p := range h.ports {
		index[p.Name] = ifindex
	}
	table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "nat"}
	accept := nftables.ChainPolicyAccept
	in := &nftables.Chain{Name: "PREROUTING", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter, Policy: &accept}
	out := &nftables.Chain{Name: "POSTROUTING", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter, Policy: &accept}
	name := func(s string) []byte { return append([]byte(s), 0) }
	rule := func(key expr.MetaKey, device []byte, more ...expr.Any) []expr.Any {
		return append([]expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: device}}, more...)
	}
	jump := func(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain} }
	counter := expr.Any(&expr.Counter{})
	const iif, oif = expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME

	type holds map[vswitch.HoldCode]vswitch.Direction
	for _, tt := range []struct {
		name    string
		in, out [][]expr.Any
		want    holds // of vnet0
	}{
		{name: "from the guest", in: [][]expr.Any{rule(iif, name("vnet0"), counter, jump("libvirt-I-vnet0"))}, want: holds{vswitch.HoldFilter: vswitch.In}},
		{name: "to the guest", out: [][]expr.Any{rule(oif, name("vnet0"), counter, jump("libvirt-O-vnet0"))}, want: holds{vswitch.HoldFilter: vswitch.Out}},
		{
			name: "both, while they change", in: [][]expr.Any{rule(iif, name("vnet0"), jump("libvirt-I-vnet0")), rule(iif, name("vnet0"), jump("libvirt-J-vnet0"))},
			out: [][]expr.Any{rule(oif, name("vnet0"), jump("libvirt-P-vnet0"))}, want: holds{vswitch.HoldFilter: vswitch.Both},
		},
		{
			name: "another rule beside it", in: [][]expr.Any{rule(iif, name("vnet0"), jump("libvirt-I-vnet0")), rule(iif, name("vnet0"), jump("mine"))},
			want: holds{vswitch.HoldFilter: vswitch.In, vswitch.HoldNftables: vswitch.In},
		},
		{name: "another guest's chain", in: [][]expr.Any{rule(iif, name("vnet0"), jump("libvirt-I-vnet1"))}, want: holds{vswitch.HoldNftables: vswitch.In}},
		{name: "the other direction's chain", in: [][]expr.Any{rule(iif, name("vnet0"), jump("libvirt-O-vnet0"))}, want: holds{vswitch.HoldNftables: vswitch.In}},
		{name: "a prefix", in: [][]expr.Any{rule(iif, []byte("vnet"), jump("libvirt-I-vnet"))}, want: holds{vswitch.HoldNftables: vswitch.In}},
		{name: "without return", in: [][]expr.Any{rule(iif, name("vnet0"), &expr.Verdict{Kind: expr.VerdictGoto, Chain: "libvirt-I-vnet0"})}, want: holds{vswitch.HoldNftables: vswitch.In}},
		{
			name: "something is done before", in: [][]expr.Any{rule(iif, name("vnet0"), &expr.Immediate{Register: 1, Data: []byte{1, 0, 0, 0}}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}, jump("libvirt-I-vnet0"))},
			want: holds{vswitch.HoldNftables: vswitch.In},
		},
		{name: "none of the guest", in: [][]expr.Any{rule(iif, name("vnet1"), jump("libvirt-I-vnet1"))}, want: holds{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h.nft(t, func(c *nftables.Conn) {
				c.AddTable(table)
				for _, chain := range []string{"libvirt-I-vnet", "libvirt-I-vnet0", "libvirt-J-vnet0", "libvirt-O-vnet0", "libvirt-P-vnet0", "libvirt-I-vnet1", "mine"} {
					c.AddChain(&nftables.Chain{Name: chain, Table: table})
				}
				for chain, rules := range map[*nftables.Chain][][]expr.Any{in: tt.in, out: tt.out} {
					c.AddChain(chain)
					for _, e := range rules {
						c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: e})
					}
				}
			})
			defer h.nft(t, func(c *nftables.Conn) { c.DelTable(table) })
			got := holds{}
			for _, reason := range h.holds(t, r)[index["vnet0"]] {
				got[reason.Code] |= reason.Direction
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("vnet0 is held (-want +got):\n%s", d)
			}
		})
	}
}

// What libvirt's chains say is told by a number, in which counters have no part.
func TestFilterRules(t *testing.T) {
	h := newHost(t, 1)
	r := NewReader(Options{})
	numbers := map[uint64]string{}
	check := func(what, same string) {
		t.Helper()
		h.holds(t, r)
		if was, ok := numbers[r.FilterRules()]; was != same || ok != (same != "") {
			t.Errorf("%s: the number is that of %q, want that of %q", what, was, same)
		}
		numbers[r.FilterRules()] = what
	}
	table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "nat"}
	base := &nftables.Chain{Name: "PREROUTING", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter}
	own := &nftables.Chain{Name: "libvirt-I-vnet0", Table: table}
	drop := func(packets uint64) {
		h.nft(t, func(c *nftables.Conn) {
			c.FlushChain(own)
			c.AddRule(&nftables.Rule{Table: table, Chain: own, Exprs: []expr.Any{&expr.Counter{Packets: packets}, &expr.Verdict{Kind: expr.VerdictDrop}}})
		})
	}
	check("no rules", "")
	h.nft(t, func(c *nftables.Conn) {
		c.AddTable(table)
		c.AddChain(own)
		c.AddChain(base)
		c.AddRule(&nftables.Rule{Table: table, Chain: base, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("vnet0\x00")},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: own.Name},
		}})
	})
	check("an empty chain", "")
	drop(1)
	check("it drops", "")
	drop(2)
	check("it has dropped more", "it drops")
	h.nft(t, func(c *nftables.Conn) { c.FlushChain(own) })
	check("it is empty again", "an empty chain")
	h.nft(t, func(c *nftables.Conn) { c.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: "other"}) })
	check("another table is new", "it is empty again")
	h.nft(t, func(c *nftables.Conn) { c.DelTable(table) })
	check("no table", "no rules")
}

// In legacy ebtables a jump is told by the place of its chain.
func TestEbtablesFilters(t *testing.T) {
	const accept = -1
	for _, tt := range []struct {
		name   string
		chain  string
		target string
		to     int // verdict: chains begin there; the own one's place if 0
		want   bool
	}{
		{name: "libvirt's", chain: "libvirt-I-vnet0", target: "standard", want: true},
		{name: "another's", chain: "libvirt-I-vnet1", target: "standard"},
		{name: "somebody else's", chain: "mine", target: "standard"},
		{name: "no jump", chain: "libvirt-I-vnet0", target: "standard", to: -2},
		{name: "not to a chain", chain: "libvirt-I-vnet0", target: "standard", to: ebtChainLen},
		{name: "out of the table", chain: "libvirt-I-vnet0", target: "standard", to: 1 << 20},
		{name: "another target", chain: "libvirt-I-vnet0", target: "mark"},
	} {
		entries := ebtRules("PREROUTING", accept, 0, [2]string{"vnet0"})
		rule := entries[ebtChainLen:]
		const target = 112
		native.PutUint32(rule[ebtTarget:], target)
		copy(rule[target:], tt.target)
		to := tt.to
		if to == 0 {
			to = len(entries)
		}
		native.PutUint32(rule[target+ebtStandard:], uint32(int32(to)))
		entries = append(entries, ebtChain(tt.chain, accept, 1)...)
		got, err := ebtParse(entries, ebtTables[1].chains)
		if err != nil || len(got) != 1 || len(got[0].ports) != 1 || got[0].ports[0].filter != tt.want {
			t.Errorf("%s: %+v (%v), want a filter's: %t", tt.name, got, err, tt.want)
		}
	}
}
