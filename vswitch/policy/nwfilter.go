package policy

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// libvirt puts the filter of a guest's interface into force by a rule that leads the
// frames of its tap, and these alone, into a chain named after the tap. While a filter
// changes there are two such rules, the new one to a chain of another letter.
var filterChains = map[vswitch.Direction][]string{
	vswitch.In:  {"libvirt-I-", "libvirt-J-"},
	vswitch.Out: {"libvirt-O-", "libvirt-P-"},
}

// leadsToFilter says whether a rule for a device that does nothing but jump to the
// chain is libvirt's for that device.
func (m portMatch) leadsToFilter(chain string) bool {
	return m.name != "" && !m.prefix && slices.ContainsFunc(filterChains[m.direction], func(prefix string) bool { return chain == prefix+m.name })
}

// FilterRules gives a number that is another when rules of libvirt's filters are, as far
// as the last look has found; 0 if there are none. What they say is for libvirt to tell.
func (r *Reader) FilterRules() uint64 { return r.ruleset.filters + r.ebtables.filters }

// hasFilter says whether a chain has a rule of a filter of libvirt's.
func (e effect) hasFilter() bool {
	return slices.ContainsFunc(e.ports, func(m portMatch) bool { return m.filter })
}

// jumpsTo gives the chain that the end of a rule jumps to; empty if that does anything
// else.
func jumpsTo(rest []expression) (string, error) {
	for i, e := range rest {
		if i+1 < len(rest) {
			if !e.pure() && e.name != "counter" {
				return "", nil
			}
			continue
		}
		if e.name != "immediate" {
			return "", nil
		}
		return verdictJump(e.data[unix.NFTA_IMMEDIATE_DATA])
	}
	return "", nil
}

// verdictJump gives the chain of a verdict that is a jump, else nothing.
func verdictJump(data []byte) (chain string, err error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return "", err
	}
	ad.ByteOrder = binary.BigEndian
	jump := false
	for ad.Next() {
		if ad.Type() != unix.NFTA_DATA_VERDICT {
			continue
		}
		ad.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				switch ad.Type() {
				case unix.NFTA_VERDICT_CODE:
					jump = int32(ad.Uint32()) == unix.NFT_JUMP
				case unix.NFTA_VERDICT_CHAIN:
					chain = ad.String()
				}
			}
			return nil
		})
	}
	if !jump {
		chain = ""
	}
	return chain, ad.Err()
}

// digestRules gives a number for all rules of a table, whatever they have counted.
func digestRules(c *netlink.Conn, family uint8, table string) (uint64, error) {
	answers, err := nftList(c, unix.NFT_MSG_GETRULE, family, func(ae *netlink.AttributeEncoder) { ae.String(unix.NFTA_RULE_TABLE, table) })
	if err != nil {
		return 0, fmt.Errorf("listing the rules of table %s: %w", table, err)
	}
	h := fnv.New64a()
	for _, m := range answers {
		rule, chain, err := parseRule(m.Data)
		if err != nil {
			return 0, fmt.Errorf("reading a rule: %w", err)
		}
		fmt.Fprintf(h, "%q", chain)
		for _, e := range rule {
			fmt.Fprintf(h, "%q", e.name)
			if e.name == "counter" {
				continue
			}
			for _, attribute := range slices.Sorted(maps.Keys(e.data)) {
				fmt.Fprintf(h, "%d%q", attribute, e.data[attribute])
			}
		}
	}
	return h.Sum64(), nil
}
