// Package policy finds what decides over bridged frames beside the bridge:
// nftables, ebtables, iptables by way of br_netfilter, and queueing disciplines
// that limit. The fast path goes past all of these, so ports and bridges that have
// them are held back.
//
// All of it is read in the network namespace of the calling thread, and nothing
// is changed there. Programs and filters at XDP, tcx and clsact are hostbpf's part.
//
// Not looked at, because frames between ports never meet it:
//   - chains for input and output: the fast path leaves to the bridge what is for
//     the host, and what comes from it never enters;
//   - flow tables: only rules put flows there, and only flows that are routed;
//   - conntrack without rules: it notes flows and lets them pass. The fast path
//     hides some from it, which only a rule could tell;
//   - macvlan, IPVLAN and the like over a port: the kernel has one taker of a
//     device's frames, so a bridge port has none of these, nor they a bridge.
//
// What br_netfilter does by itself, without rules, is no reason either. It drops
// IP packets with a malformed header or a wrong header checksum, and cuts padding
// off: it guards the code of iptables, and nobody set it up to guard a guest. The
// receiver's stack makes the same checks, and padding is no part of a packet. To
// hold back for it would keep the fast path from every host that has the module.
package policy

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// Options say how a Reader judges. The zero value holds back for everything.
type Options struct {
	// AcceptBypass names the bridges whose frames may go past what else decides
	// over them. The reasons stay, as remarks.
	AcceptBypass []string
}

// A Reader looks for policies, and remembers what it need not read again. It is
// for one goroutine at a time.
type Reader struct {
	accepted []string
	ruleset  ruleset
	ebtables ebtables

	devices map[int]device
}

// A device is a bridge or a port, as far as what is found depends on it.
type device struct {
	name string
	role vswitch.Role
}

// NewReader makes a Reader, which holds no resources.
func NewReader(o Options) *Reader { return &Reader{accepted: o.AcceptBypass} }

// Holds gives the reasons to hold back for policies, by the ifindex of a port, or
// of a bridge for all its ports. What can't be read is a reason too: it may hide a
// rule. It needs CAP_NET_ADMIN in the user namespace that owns the network's.
func (r *Reader) Holds(bridges map[int]vswitch.Bridge, ports map[int]vswitch.Port) map[int][]vswitch.HoldReason {
	devices := make(map[int]device, len(bridges)+len(ports))
	for ifindex, br := range bridges {
		devices[ifindex] = device{name: br.Name}
	}
	for ifindex, p := range ports {
		devices[ifindex] = device{p.Name, p.Role}
	}
	// Before Linux 6.16 a chain leaves a device that goes, and does not come back
	// to one of the same name, neither of which makes a new generation.
	if !maps.Equal(devices, r.devices) && slices.ContainsFunc(r.ruleset.chains, chain.onDevices) {
		r.ruleset.have = false
	}
	r.devices = devices
	return r.read(bridges, ports).reasons(bridges, ports, r.accepted)
}

// found is what a look has found, as yet without a judgement.
type found struct {
	chains  []chain          // of nftables: hooked ones that can change or stop a frame
	tables  []table          // of iptables, ip6tables, arptables and ebtables
	calls   calls            // for all bridges
	calling map[int]calls    // for a bridge alone, by ifindex
	below   map[string][]int // ports by the names of the devices that carry their frames
	qdiscs  []qdisc          // of guests' ports
	unread  []error
}

// A table is one of the older tools', as far as bridged frames meet it.
type table struct {
	tool   string // "iptables", …
	name   string
	chains []effect
}

// An effect says what a hooked chain does.
type effect struct {
	chain string
	rules bool // has rules
	drops bool // drops what no rule decides
	// ports are the devices that the rules name, if each names one; empty if frames
	// of any may meet a rule.
	ports []portMatch
}

func (e effect) String() string {
	switch {
	case e.rules && e.drops:
		return "chain " + e.chain + " has rules and drops the rest"
	case e.drops:
		return "chain " + e.chain + " drops everything"
	}
	return "chain " + e.chain + " has rules"
}

func (r *Reader) read(bridges map[int]vswitch.Bridge, ports map[int]vswitch.Port) *found {
	f := &found{}
	note := func(err error) {
		if err != nil {
			f.unread = append(f.unread, err)
		}
	}
	var err error
	f.chains, err = r.ruleset.read()
	note(err)
	if needsCarriers(f.chains, ports) {
		links, err := readLinks()
		note(err)
		f.below = carriers(links, ports)
	}
	f.tables, err = r.ebtables.read()
	note(err)
	for _, x := range xtables {
		tables, err := x.read()
		note(err)
		f.tables = append(f.tables, tables...)
	}
	if rules := f.wanted(); rules != (calls{}) {
		f.calls, err = readCalls()
		note(err)
		// A bridge's own settings can only add to those of the namespace.
		if rules.or(f.calls) != f.calls {
			f.calling, err = readBridgeCalls(bridges)
			note(err)
		}
	}
	f.qdiscs, err = readQdiscs(ports)
	note(err)
	return f
}

// needsCarriers says whether a chain belongs to a device that may be below a port.
func needsCarriers(chains []chain, ports map[int]vswitch.Port) bool {
	own := map[string]bool{}
	for _, p := range ports {
		own[p.Name] = true
	}
	return slices.ContainsFunc(chains, func(c chain) bool {
		return c.onDevices() && slices.ContainsFunc(c.devices, func(m deviceMatch) bool { return m.prefix || !own[m.name] })
	})
}

// reasons judges what was found.
func (f *found) reasons(bridges map[int]vswitch.Bridge, ports map[int]vswitch.Port, accepted []string) map[int][]vswitch.HoldReason {
	reasons := map[int][]vswitch.HoldReason{}
	hold := func(ifindex int, br vswitch.Bridge, code vswitch.HoldCode, d vswitch.Direction, what, remedy string) {
		r := vswitch.HoldReason{Code: code, Direction: d}
		if slices.Contains(accepted, br.Name) {
			r.Direction, r.Text = 0, what+"; the fast path goes past it, as accept_bypass says for "+br.Name
		} else {
			r.Text = fmt.Sprintf("%s; %s, or name %s under accept_bypass in the configuration if its frames may go past it", what, remedy, br.Name)
		}
		reasons[ifindex] = append(reasons[ifindex], r)
	}
	for ifindex, br := range bridges {
		for _, err := range f.unread {
			hold(ifindex, br, vswitch.HoldUnread, vswitch.Both, "what decides over bridged frames is not known: "+err.Error(), "mend that")
		}
		c := f.calls.or(f.calling[ifindex])
		for _, t := range nftTables(f.chains, c) {
			effects := everywhere(t.effects)
			if len(effects) == 0 {
				continue
			}
			frames, off := "frames", ""
			if t.family != unix.NFPROTO_BRIDGE {
				frames, off = "IP packets, by br_netfilter", switchOff(br.Name, c.switches(t.family)...)
			}
			hold(ifindex, br, vswitch.HoldNftables, vswitch.Both,
				fmt.Sprintf("nftables table %s %s decides over bridged %s: %s", t.familyName(), t.table, frames, list(effects)),
				fmt.Sprintf("take the rules out (see 'nft list table %s %s')%s", t.familyName(), t.table, off))
		}
		for _, t := range f.tables {
			effects := everywhere(t.chains)
			if tool, ok := c.tool(t.tool); ok && len(effects) > 0 {
				hold(ifindex, br, tool.code, vswitch.Both,
					fmt.Sprintf("%s table %s decides over bridged %s: %s", t.tool, t.name, tool.frames, list(effects)),
					fmt.Sprintf("take the rules out (see '%s -t %s -L')%s", t.tool, t.name, switchOff(br.Name, tool.switches...)))
			}
		}
	}
	for ifindex, p := range ports {
		br, ok := bridges[p.Bridge]
		if !ok {
			continue
		}
		for _, c := range f.chains {
			if d := c.direction(p, f.below); d != 0 {
				hold(ifindex, br, vswitch.HoldNftables, d,
					fmt.Sprintf("nftables table %s %s decides over frames of device %s: %s", c.familyName(), c.table, p.Name, c.effect),
					fmt.Sprintf("take the chain off the device (see 'nft list table %s %s')", c.familyName(), c.table))
			}
		}
		const mine = "take them out (see '%s'; libvirt's <filterref> makes such)"
		const filtered = "a filter of libvirt's decides over frames of %s (%s)"
		const untold = "let the daemon hear of libvirt what it says (see 'tapswitch status'), take <filterref> out of the interface if the guest is trusted"
		for _, t := range nftTables(f.chains, calls{}) {
			if _, d := at(t.effects, p, true); d != 0 {
				hold(ifindex, br, vswitch.HoldFilter, d, fmt.Sprintf(filtered, p.Name, "nftables table "+t.familyName()+" "+t.table), untold)
			}
			if effects, d := at(t.effects, p, false); d != 0 {
				hold(ifindex, br, vswitch.HoldNftables, d,
					fmt.Sprintf("nftables table %s %s has rules for %s: %s", t.familyName(), t.table, p.Name, list(effects)),
					fmt.Sprintf(mine, "nft list table "+t.familyName()+" "+t.table))
			}
		}
		for _, t := range f.tables {
			if _, d := at(t.chains, p, true); d != 0 {
				hold(ifindex, br, vswitch.HoldFilter, d, fmt.Sprintf(filtered, p.Name, t.tool+" table "+t.name), untold)
			}
			if effects, d := at(t.chains, p, false); d != 0 {
				hold(ifindex, br, vswitch.HoldEbtables, d,
					fmt.Sprintf("%s table %s has rules for %s: %s", t.tool, t.name, p.Name, list(effects)),
					fmt.Sprintf(mine, t.tool+" -t "+t.name+" -L"))
			}
		}
		for _, q := range f.qdiscs {
			if q.ifindex == ifindex {
				hold(ifindex, br, vswitch.HoldQdisc, vswitch.OutXDP,
					fmt.Sprintf("qdisc %s %s limits or drops frames to %s, which XDP goes past", q.kind, q.handle, p.Name),
					fmt.Sprintf("take it off (see 'tc qdisc show dev %s'; libvirt's <bandwidth> makes it)", p.Name))
			}
		}
	}
	return reasons
}

// list joins effects for people.
func list(effects []effect) string {
	text := ""
	for i, e := range effects {
		if i > 0 {
			text += ", "
		}
		text += e.String()
	}
	return text
}
