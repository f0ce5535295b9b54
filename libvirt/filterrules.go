package libvirt

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tapswitch/tapswitch/vswitch"
)

// filterRules are a filter's rules for one interface, in the order in which frames meet
// them. They are run on classes of frames, of which little is known, to see whether all
// frames of a class are let through: a rule that may match is taken both ways.
type filterRules struct {
	root []filterStep
	mac  vswitch.MAC
	vars map[string][]string // but MAC
}

// A filterStep is a rule, or the way into a chain of rules.
type filterStep struct {
	filterRule
	chain []filterStep
	// unordered says that the way into another chain has the same priority.
	unordered bool
}

// newFilterRules puts the rules of a filter in order for an interface.
func newFilterRules(rules []chainedRule, mac vswitch.MAC, vars map[string][]string) (*filterRules, error) {
	f := &filterRules{mac: mac, vars: vars}
	chains := map[string]*filterStep{}
	for _, r := range rules {
		if err := f.check(r.filterRule); err != nil {
			return nil, err
		}
		if r.chain.name == rootChain {
			f.root = append(f.root, filterStep{filterRule: r.filterRule})
			continue
		}
		c := chains[r.chain.name]
		if c == nil {
			c = &filterStep{filterRule: filterRule{priority: r.chain.priority, protocol: chainProtocol(r.chain.name)}}
			chains[r.chain.name] = c
		}
		if c.priority != r.chain.priority {
			return nil, fmt.Errorf("its chain %s has priorities %d and %d", r.chain.name, c.priority, r.chain.priority)
		}
		c.chain = append(c.chain, filterStep{filterRule: r.filterRule})
	}
	// Frames are led into a chain before they meet rules of the same priority.
	var ways []filterStep
	for name, c := range chains {
		sortSteps(c.chain)
		for other, o := range chains {
			c.unordered = c.unordered || other != name && o.priority == c.priority
		}
		ways = append(ways, *c)
	}
	f.root = append(ways, f.root...)
	sortSteps(f.root)
	return f, nil
}

func sortSteps(s []filterStep) {
	slices.SortStableFunc(s, func(a, b filterStep) int { return cmp.Compare(a.priority, b.priority) })
}

// check refuses a rule whose variables have no value: libvirt finds out an address by
// itself that it is not told.
func (f *filterRules) check(r filterRule) error {
	for _, value := range r.fields {
		name, ok := strings.CutPrefix(value, "$")
		if name, _, _ = strings.Cut(name, "["); !ok || name == "MAC" || len(f.vars[name]) > 0 {
			continue
		}
		if name == "IP" {
			return fmt.Errorf("libvirt finds out the guest's address by itself: name it in <filterref> by <parameter name='IP' value='…'/>")
		}
		return fmt.Errorf("it wants a parameter %s, which <filterref> does not have", name)
	}
	return nil
}

// A frameClass is all unicast frames of which the same is known.
type frameClass struct {
	fromGuest bool
	kind      vswitch.FrameKinds // one; FramesOther stands for frames of any kind
	own       bool               // from the interface's own address
	source    netip.Addr         // of IPv4; zero if it is not known
}

// An outcome is what may become of a frame; several can be.
type outcome uint8

const (
	accepted outcome = 1 << iota
	stopped
	returned // to behind the way into the chain; from the root, to the bridge
	goesOn   // to the next step
)

// lets says whether all frames of a class are let through.
func (f *filterRules) lets(c frameClass) bool { return run(f, f.root, c)&stopped == 0 }

// run gives what may become of the frames of a class that come into a chain. Those that
// have come to its end return; where libvirt's tools accept them there instead, they are
// let through all the more.
func run(f *filterRules, chain []filterStep, c frameClass) (all outcome) {
	for _, s := range chain {
		m, o := f.take(s, c)
		if m == no {
			continue
		}
		all |= o &^ goesOn
		if m == yes && o&goesOn == 0 {
			return all
		}
	}
	return all | returned
}

// take says whether a step is for frames of a class, and what may become of those that
// it is for.
func (f *filterRules) take(s filterStep, c frameClass) (match, outcome) {
	if s.chain != nil {
		o := run(f, s.chain, c)
		if o&returned != 0 || s.unordered {
			o = o&^returned | goesOn
		}
		return chainMatches(s.protocol, c.kind), o
	}
	o := map[string]outcome{"accept": accepted, "drop": stopped, "reject": stopped, "return": returned, "continue": goesOn}[s.action]
	direction := "in"
	if c.fromGuest {
		direction = "out"
	}
	if s.direction != direction && s.direction != "inout" {
		return no, 0
	}
	return f.matches(s.filterRule, c), o
}

// A match says whether something matches all frames of a class, none, or perhaps some.
type match uint8

const (
	no match = iota
	perhaps
	yes
)

func whether(b bool) match {
	if b {
		return yes
	}
	return no
}

// chainMatches says whether frames are led into a chain for a protocol. To a bridge
// frames with a VLAN tag are VLAN's, and of no kind that is known.
func chainMatches(protocol string, kind vswitch.FrameKinds) match {
	switch {
	case protocol == "mac":
		return yes
	case protocol == "stp":
		return no // which is multicast
	case kind == vswitch.FramesOther:
		return perhaps
	}
	return whether(protocol == "ipv4" && kind == vswitch.FramesIPv4 || protocol == "ipv6" && kind == vswitch.FramesIPv6)
}

// matches says whether a rule matches frames of a class.
func (f *filterRules) matches(r filterRule, c frameClass) match {
	chain, ok := map[string]string{"": "mac", "ip": "ipv4"}[r.protocol]
	if !ok {
		chain = r.protocol
	}
	m := chainMatches(chain, c.kind)
	lists := map[string]bool{}
	for field, value := range r.fields {
		if field == "match" && value == "no" {
			return perhaps
		}
		m = min(m, f.field(r, field, value, c))
		if len(f.vars[strings.TrimPrefix(value, "$")]) > 1 {
			lists[value] = true
		}
	}
	if len(lists) > 1 { // the first value of one goes with the first of the other
		m = min(m, perhaps)
	}
	return m
}

// field says whether one of a rule's fields matches frames of a class.
func (f *filterRules) field(r filterRule, field, value string, c frameClass) match {
	_, masked := r.fields[strings.TrimSuffix(field, "addr")+"mask"]
	switch {
	case field == "match" || field == "comment":
		return yes
	case masked:
	case field == "srcmacaddr" && c.own:
		return f.anyOf(value, func(text string) match {
			mac, err := vswitch.ParseMAC(text)
			return max(whether(mac == f.mac), unless(err))
		})
	case field == "dstmacaddr":
		if mac, err := vswitch.ParseMAC(value); err == nil && mac.Group() {
			return no
		}
	case field == "protocolid" && r.protocol == "mac":
		number, err := etherType(value)
		if c.kind == vswitch.FramesOther || err != nil {
			return perhaps
		}
		return whether(number == map[vswitch.FrameKinds]uint16{vswitch.FramesIPv4: 0x0800, vswitch.FramesIPv6: 0x86dd}[c.kind])
	case field == "srcipaddr" && r.protocol == "ip" && c.source.IsValid():
		return f.anyOf(value, func(text string) match {
			a, err := netip.ParseAddr(text)
			return max(whether(a == c.source), unless(err))
		})
	}
	return perhaps
}

// unless gives perhaps for what could not be read.
func unless(err error) match {
	if err != nil {
		return perhaps
	}
	return no
}

// anyOf says whether a value matches, or any of those of a variable.
func (f *filterRules) anyOf(value string, matches func(string) match) (m match) {
	values, ok := f.values(value)
	if !ok {
		return perhaps
	}
	for _, v := range values {
		m = max(m, matches(v))
	}
	return m
}

// values gives what a field stands for; false if that can't be told.
func (f *filterRules) values(value string) ([]string, bool) {
	name, variable := strings.CutPrefix(value, "$")
	switch {
	case !variable:
		return []string{value}, true
	case name == "MAC":
		return []string{f.mac.String()}, true
	}
	values, ok := f.vars[name]
	return values, ok
}

// etherType reads a frame's type as libvirt writes it.
func etherType(text string) (uint16, error) {
	if n, ok := map[string]uint16{"arp": 0x0806, "rarp": 0x8035, "ipv4": 0x0800, "ipv6": 0x86dd, "vlan": 0x8100}[text]; ok {
		return n, nil
	}
	n, err := strconv.ParseUint(text, 0, 16)
	return uint16(n), err
}

// frames gives what the rules are sure to let through; open says that this is all.
func (f *filterRules) frames() (all vswitch.Filter, open bool) {
	for _, own := range []bool{false, true} {
		c := frameClass{fromGuest: true, own: own}
		g := vswitch.Filter{}
		if own {
			g.Source = f.mac
		}
		for _, c.kind = range []vswitch.FrameKinds{vswitch.FramesIPv4, vswitch.FramesIPv6, vswitch.FramesOther} {
			if f.lets(c) {
				g.In |= c.kind
			}
		}
		if c.kind = vswitch.FramesIPv4; g.In&c.kind == 0 {
			for _, c.source = range f.sources() {
				if f.lets(c) && g.Sources < len(g.IPv4) {
					g.In |= c.kind
					g.IPv4[g.Sources] = c.source.As4()
					g.Sources++
				}
			}
		}
		// What is let through from any address needs none.
		if g.In != all.In || g.Sources > all.Sources {
			all = g
		}
	}
	for _, kind := range []vswitch.FrameKinds{vswitch.FramesIPv4, vswitch.FramesIPv6, vswitch.FramesOther} {
		if f.lets(frameClass{kind: kind}) {
			all.Out |= kind
		}
	}
	return all, all == vswitch.Filter{In: vswitch.FramesAll, Out: vswitch.FramesAll}
}

// sources gives the IPv4 addresses that rules name, in order.
func (f *filterRules) sources() (addrs []netip.Addr) {
	for _, s := range f.root {
		for _, r := range slices.Concat(s.chain, []filterStep{s}) {
			values, _ := f.values(r.fields["srcipaddr"])
			for _, v := range values {
				if a, err := netip.ParseAddr(v); err == nil && a.Is4() {
					addrs = append(addrs, a)
				}
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
