package policy

import (
	"encoding/binary"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// Rules that name a port hold that port alone, in their direction.
func TestRulesOfPorts(t *testing.T) {
	h := newHost(t, 2)
	r := NewReader(Options{})
	indexes := map[string]int{}
	for ifindex, br := range h.bridges {
		indexes[br.Name] = ifindex
	}
	for ifindex, p := range h.ports {
		indexes[p.Name] = ifindex
	}
	bridge, vnet0, vnet1 := indexes["br0"], indexes["vnet0"], indexes["vnet1"]
	table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "t"}
	accept := nftables.ChainPolicyAccept
	chain := &nftables.Chain{Name: "prerouting", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter, Policy: &accept}

	name := func(s string) []byte { return append([]byte(s), make([]byte, unix.IFNAMSIZ-len(s))...) }
	index := func(i int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(i)) }
	load := func(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: 1} }
	is := func(value []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value} }
	drop := expr.Any(&expr.Verdict{Kind: expr.VerdictDrop})
	rule := func(e ...expr.Any) []expr.Any { return append(e, drop) }
	arp := []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 12, Len: 2}, is([]byte{8, 6})}
	set := func(kind nftables.SetDatatype, change func(*nftables.Set), keys ...[]byte) func(c *nftables.Conn) []expr.Any {
		return func(c *nftables.Conn) []expr.Any {
			s := &nftables.Set{Table: table, Name: "s", KeyType: kind}
			change(s)
			var elements []nftables.SetElement
			for _, k := range keys {
				e := nftables.SetElement{Key: k}
				if s.IsMap {
					e.VerdictData = &expr.Verdict{Kind: expr.VerdictDrop}
				}
				elements = append(elements, e)
			}
			if err := c.AddSet(s, elements); err != nil {
				t.Fatal(err)
			}
			key := expr.MetaKeyIIFNAME
			if kind.Name == nftables.TypeIFIndex.Name {
				key = expr.MetaKeyIIF
			}
			lookup := &expr.Lookup{SourceRegister: 1, SetName: "s", SetID: s.ID, IsDestRegSet: s.IsMap}
			if s.IsMap {
				return []expr.Any{load(key), lookup}
			}
			return rule(load(key), lookup)
		}
	}
	plain := func(*nftables.Set) {}
	verdicts := func(s *nftables.Set) { s.IsMap, s.DataType = true, nftables.TypeVerdict }

	in0, none := map[int]vswitch.Direction{vnet0: vswitch.In}, map[int]vswitch.Direction{}
	all := map[int]vswitch.Direction{bridge: vswitch.Both}
	both := map[int]vswitch.Direction{vnet0: vswitch.In, vnet1: vswitch.In}
	for _, tt := range []struct {
		name  string
		rules [][]expr.Any
		set   func(*nftables.Conn) []expr.Any // makes the one rule
		want  map[int]vswitch.Direction
	}{
		{name: "iifname", rules: [][]expr.Any{rule(load(expr.MetaKeyIIFNAME), is(name("vnet0")))}, want: in0},
		{name: "iif", rules: [][]expr.Any{rule(load(expr.MetaKeyIIF), is(index(vnet0)))}, want: in0},
		{name: "oifname", rules: [][]expr.Any{rule(load(expr.MetaKeyOIFNAME), is(name("vnet1")))}, want: map[int]vswitch.Direction{vnet1: vswitch.Out}},
		{name: "a prefix", rules: [][]expr.Any{rule(load(expr.MetaKeyIIFNAME), is([]byte("vnet")))}, want: both},
		{name: "two rules", rules: [][]expr.Any{rule(load(expr.MetaKeyIIFNAME), is(name("vnet0"))), rule(load(expr.MetaKeyIIFNAME), is(name("vnet1")))}, want: both},
		{name: "another device", rules: [][]expr.Any{rule(load(expr.MetaKeyIIFNAME), is(name("vnet")))}, want: none},
		{name: "after another match", rules: [][]expr.Any{rule(append(arp, load(expr.MetaKeyIIFNAME), is(name("vnet0")))...)}, want: in0},
		{name: "before another match", rules: [][]expr.Any{rule(append([]expr.Any{load(expr.MetaKeyIIFNAME), is(name("vnet0")), &expr.Counter{}}, arp...)...)}, want: in0},
		{name: "a map", set: set(nftables.TypeIFIndex, verdicts, index(vnet0)), want: in0},
		{name: "an empty map", set: set(nftables.TypeIFIndex, verdicts), want: none},
		{name: "a set of names", set: set(nftables.TypeIFName, plain, name("vnet0"), name("vnet1")), want: both},

		{name: "none named", rules: [][]expr.Any{rule()}, want: all},
		{name: "another match alone", rules: [][]expr.Any{rule(arp...)}, want: all},
		{name: "all but one", rules: [][]expr.Any{rule(load(expr.MetaKeyIIFNAME), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name("vnet0")})}, want: all},
		{name: "one rule names none", rules: [][]expr.Any{rule(load(expr.MetaKeyIIFNAME), is(name("vnet0"))), rule()}, want: all},
		{name: "the frame is counted first", rules: [][]expr.Any{rule(&expr.Counter{}, load(expr.MetaKeyIIFNAME), is(name("vnet0")))}, want: all},
		{name: "a mark first", rules: [][]expr.Any{rule(&expr.Immediate{Register: 1, Data: index(1)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}, load(expr.MetaKeyIIFNAME), is(name("vnet0")))}, want: all},
		{name: "elements that time out", set: set(nftables.TypeIFIndex, func(s *nftables.Set) { s.HasTimeout = true }, index(vnet0)), want: all},
		{name: "elements that frames add", set: set(nftables.TypeIFIndex, func(s *nftables.Set) { s.Dynamic, s.Size = true, 8 }, index(vnet0)), want: all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h.nft(t, func(c *nftables.Conn) {
				c.AddTable(table)
				c.AddChain(chain)
				if tt.set != nil {
					tt.rules = [][]expr.Any{tt.set(c)}
				}
				for _, e := range tt.rules {
					c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: e})
				}
			})
			defer h.nft(t, func(c *nftables.Conn) { c.DelTable(table) })
			got := map[int]vswitch.Direction{}
			for ifindex, reasons := range h.holds(t, r) {
				for _, reason := range reasons {
					if reason.Code != vswitch.HoldNftables {
						t.Errorf("held for %+v", reason)
					}
					got[ifindex] |= reason.Direction
				}
			}
			for ifindex := range h.ports {
				if got[ifindex] != tt.want[ifindex] {
					t.Errorf("%s is held %v, want %v", h.ports[ifindex].Name, got[ifindex], tt.want[ifindex])
				}
			}
			if got[bridge] != tt.want[bridge] {
				t.Errorf("the bridge is held %v, want %v", got[bridge], tt.want[bridge])
			}
		})
	}
}

// A device that comes into a map later is held from then on.
func TestRulesFollowMap(t *testing.T) {
	h := newHost(t, 1)
	r := NewReader(Options{})
	table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "t"}
	chain := &nftables.Chain{Name: "prerouting", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter}
	set := &nftables.Set{Table: table, Name: "m", KeyType: nftables.TypeIFIndex, IsMap: true, DataType: nftables.TypeVerdict}
	h.nft(t, func(c *nftables.Conn) {
		c.AddTable(table)
		c.AddChain(chain)
		if err := c.AddSet(set, nil); err != nil {
			t.Fatal(err)
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: "m", SetID: set.ID, IsDestRegSet: true}}})
	})
	if holds := h.holds(t, r); len(holds) > 0 {
		t.Errorf("held for an empty map: %v", holds)
	}
	for ifindex := range h.ports {
		h.nft(t, func(c *nftables.Conn) {
			element := nftables.SetElement{Key: binary.NativeEndian.AppendUint32(nil, uint32(ifindex)), VerdictData: &expr.Verdict{Kind: expr.VerdictDrop}}
			if err := c.SetAddElements(set, []nftables.SetElement{element}); err != nil {
				t.Fatal(err)
			}
		})
		if holds := h.holds(t, r); len(holds[ifindex]) != 1 || holds[ifindex][0].Direction != vswitch.In {
			t.Errorf("held for %v, want its port held in", holds)
		}
	}
}
