package guestbpf

import (
	"net/netip"

	"github.com/tapswitch/tapswitch/guestbpf/rules"
)

// tables are a set of rules as the program looks them up: for each field, the rules
// that a value of it meets.
type tables struct {
	fields   guestRuleField
	values   []guestRuleBits
	numbers  []guestIntervals // empty if no rule asks for one
	prefixes map[guestPrefixKey]guestRuleBits
	rules    []guestRule
}

func (b *guestRuleBits) set(rule int) { b.Word[rule/64] |= 1 << (rule % 64) }

// The bits that precede an address in a prefix_key.
const prefixBits = 32

func compile(set []rules.Rule) *tables {
	t := &tables{
		values:   make([]guestRuleBits, guestRuleIndexINDEX_INTERVALS),
		prefixes: map[guestPrefixKey]guestRuleBits{},
	}
	for i, r := range set {
		t.addProto(i, r)
		t.addFlags(i, r)
		t.addFragment(i, r)
		t.rules = append(t.rules, newRule(r))
	}
	t.addPrefixes(set, guestAddressSideSIDE_FROM, guestRuleFieldFIELD_FROM, func(r rules.Rule) netip.Prefix { return r.From })
	t.addPrefixes(set, guestAddressSideSIDE_TO, guestRuleFieldFIELD_TO, func(r rules.Rule) netip.Prefix { return r.To })

	t.addNumbers(set, guestRuleFieldFIELD_SPORT, func(r rules.Rule) *rules.Range { return r.Sport },
		func(n *guestIntervals) *uint16 { return &n.Sport })
	t.addNumbers(set, guestRuleFieldFIELD_DPORT, func(r rules.Rule) *rules.Range { return r.Dport },
		func(n *guestIntervals) *uint16 { return &n.Dport })
	t.addNumbers(set, guestRuleFieldFIELD_LENGTH, func(r rules.Rule) *rules.Range { return r.Length },
		func(n *guestIntervals) *uint16 { return &n.Length })
	for i, r := range set {
		if r.Sport == nil {
			t.values[guestRuleIndexINDEX_NO_SPORT].set(i)
		}
		if r.Dport == nil {
			t.values[guestRuleIndexINDEX_NO_DPORT].set(i)
		}
	}
	return t
}

func newRule(r rules.Rule) guestRule {
	made := guestRule{Rate: r.Rate, Line: uint32(r.Line), Action: uint32(guestRuleActionACTION_PASS)}
	if r.Drop {
		made.Action = uint32(guestRuleActionACTION_DROP)
	}
	if r.PerSource {
		made.PerSource = 1
	}
	copy(made.Text[:], r.String())
	return made
}

func (t *tables) addProto(i int, r rules.Rule) {
	if r.Proto != nil {
		t.fields |= guestRuleFieldFIELD_PROTO
		t.values[int(guestRuleIndexINDEX_PROTO)+int(*r.Proto)].set(i)
		return
	}
	for n := guestRuleIndexINDEX_PROTO; n <= guestRuleIndexINDEX_NO_IP; n++ {
		t.values[n].set(i)
	}
}

func (t *tables) addFlags(i int, r rules.Rule) {
	all := r.Flags == rules.Flags{}
	if !all {
		t.fields |= guestRuleFieldFIELD_FLAGS
	}
	for n := range 256 {
		if r.Flags.Has(uint8(n)) {
			t.values[int(guestRuleIndexINDEX_FLAGS)+n].set(i)
		}
	}
	if all {
		t.values[guestRuleIndexINDEX_NO_FLAGS].set(i)
	}
}

var fragments = map[rules.Fragment][]guestFragment{
	"":                  {guestFragmentFRAGMENT_NO, guestFragmentFRAGMENT_FIRST, guestFragmentFRAGMENT_LATER},
	rules.AnyFragment:   {guestFragmentFRAGMENT_FIRST, guestFragmentFRAGMENT_LATER},
	rules.FirstFragment: {guestFragmentFRAGMENT_FIRST},
	rules.LaterFragment: {guestFragmentFRAGMENT_LATER},
	rules.NoFragment:    {guestFragmentFRAGMENT_NO},
}

func (t *tables) addFragment(i int, r rules.Rule) {
	if r.Fragment != "" {
		t.fields |= guestRuleFieldFIELD_FRAGMENT
	}
	for _, f := range fragments[r.Fragment] {
		t.values[uint32(guestRuleIndexINDEX_FRAGMENT)+uint32(f)].set(i)
	}
}

// addPrefixes adds the prefixes of one side. The kernel finds the longest one that an
// address has, so each has the rules of those that contain it too.
func (t *tables) addPrefixes(set []rules.Rule, side guestAddressSide, field guestRuleField, of func(rules.Rule) netip.Prefix) {
	none := guestPrefixKey{Bits: 8, Side: uint8(side)} // frames of neither family too
	nodes := map[guestPrefixKey]netip.Prefix{none: {}}
	for _, r := range set {
		if p := of(r); p.IsValid() {
			t.fields |= field
			nodes[prefixKey(side, p)] = p
		}
	}
	for key, node := range nodes {
		var bits guestRuleBits
		for i, r := range set {
			p := of(r)
			if !p.IsValid() || node.IsValid() && p.Bits() <= node.Bits() && p.Contains(node.Addr()) {
				bits.set(i)
			}
		}
		t.prefixes[key] = bits
	}
}

func prefixKey(side guestAddressSide, p netip.Prefix) guestPrefixKey {
	key := guestPrefixKey{Bits: uint32(prefixBits + p.Bits()), Side: uint8(side), Family: 4}
	if p.Addr().Is6() {
		key.Family = 6
	}
	copy(key.Addr[:], p.Addr().AsSlice())
	return key
}

// addNumbers adds a field that rules give ranges of. The ranges' ends cut all numbers
// into intervals, and those in one meet the same rules.
func (t *tables) addNumbers(set []rules.Rule, field guestRuleField, of func(rules.Rule) *rules.Range, index func(*guestIntervals) *uint16) {
	const all = 1 << 16
	starts := map[int]bool{}
	for _, r := range set {
		if n := of(r); n != nil {
			starts[int(n.First)], starts[int(n.Last)+1] = true, true
		}
	}
	if len(starts) == 0 {
		return
	}
	t.fields |= field
	if t.numbers == nil {
		t.numbers = make([]guestIntervals, all)
	}
	starts[0] = true
	for n := range all {
		if starts[n] {
			var bits guestRuleBits
			for i, r := range set {
				if of(r) == nil || of(r).Has(uint16(n)) {
					bits.set(i)
				}
			}
			t.values = append(t.values, bits)
		}
		*index(&t.numbers[n]) = uint16(len(t.values) - 1)
	}
}
