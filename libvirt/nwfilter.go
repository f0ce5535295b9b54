package libvirt

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A filterRule is a rule of a filter of libvirt's, of those that become rules of
// ebtables.
type filterRule struct {
	action, direction string
	priority          int    // smaller ones come first
	protocol          string // "mac", "ip", …; empty for all frames of the chain
	fields            map[string]string
}

// A filterDefinition is a filter as libvirt has it.
type filterDefinition struct {
	filterChain
	entries []filterEntry
}

// A filterChain is what frames go through: all through the root, those of a protocol
// through others.
type filterChain struct {
	name     string
	priority int // among the rules of the root
}

// A filterEntry is a rule, or the name of a filter whose rules stand in its place.
type filterEntry struct {
	filterRule
	part string
}

// An element is XML as it stands: what is not known must be seen to be refused.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Elements []element  `xml:",any"`
}

func (e element) attributes() map[string]string {
	m := map[string]string{}
	for _, a := range e.Attrs {
		m[a.Name.Local] = a.Value
	}
	return m
}

// rootChain is what all frames of a guest go through.
const rootChain = "root"

// chainProtocols are those whose frames are led into a chain that is named after them,
// with or without more behind a hyphen.
var chainProtocols = []string{"mac", "stp", "vlan", "arp", "rarp", "ipv4", "ipv6"}

// chainProtocol gives the protocol of a chain's frames, empty for the root or a name
// that is not known.
func chainProtocol(chain string) string {
	protocol, _, _ := strings.Cut(chain, "-")
	if slices.Contains(chainProtocols, protocol) {
		return protocol
	}
	return ""
}

// parseFilter reads what libvirt says of a filter. All that it does not understand is
// an error.
func parseFilter(text string) (d filterDefinition, err error) {
	var e element
	if err := decode([]byte(text), &e); err != nil {
		return d, err
	}
	attrs := e.attributes()
	d.name = cmp.Or(attrs["chain"], rootChain)
	if d.name != rootChain && chainProtocol(d.name) == "" {
		return d, fmt.Errorf("its chain %s is not known", d.name)
	}
	if d.priority, err = priority(attrs["priority"], 0); err != nil {
		return d, err
	}
	for _, part := range e.Elements {
		switch part.XMLName.Local {
		case "uuid":
		case "filterref":
			if len(part.Elements) > 0 {
				return d, fmt.Errorf("it gives filter %s parameters of its own", part.attributes()["filter"])
			}
			d.entries = append(d.entries, filterEntry{part: part.attributes()["filter"]})
		case "rule":
			r, err := parseRule(part)
			if err != nil {
				return d, err
			}
			d.entries = append(d.entries, filterEntry{filterRule: r})
		default:
			return d, fmt.Errorf("<%s> in it is not known", part.XMLName.Local)
		}
	}
	return d, nil
}

func priority(text string, otherwise int) (int, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("its priority %q is no number", text)
	}
	return n, nil
}

// rulePriority is that of a rule without one.
const rulePriority = 500

func parseRule(e element) (r filterRule, err error) {
	attrs := e.attributes()
	r.action, r.direction = attrs["action"], attrs["direction"]
	if !slices.Contains([]string{"accept", "drop", "reject", "return", "continue"}, r.action) {
		return r, fmt.Errorf("action %q of a rule is not known", r.action)
	}
	if !slices.Contains([]string{"in", "out", "inout"}, r.direction) {
		return r, fmt.Errorf("direction %q of a rule is not known", r.direction)
	}
	if r.priority, err = priority(attrs["priority"], rulePriority); err != nil {
		return r, err
	}
	switch len(e.Elements) {
	case 0:
		return r, nil
	case 1:
	default:
		return r, fmt.Errorf("a rule has %d protocols", len(e.Elements))
	}
	r.protocol, r.fields = e.Elements[0].XMLName.Local, e.Elements[0].attributes()
	// Others become rules of iptables, which know connections.
	if !slices.Contains([]string{"mac", "stp", "vlan", "arp", "rarp", "ip", "ipv6"}, r.protocol) {
		return r, fmt.Errorf("it has rules for <%s>, which the fast path can't stand in for", r.protocol)
	}
	return r, nil
}

// A chainedRule is a rule in its chain.
type chainedRule struct {
	filterRule
	chain filterChain
}

// allRules gives the rules of a filter and of its parts, in the order in which they are
// named. A part that is named again adds nothing.
func allRules(name string, load func(string) (filterDefinition, error)) (rules []chainedRule, err error) {
	taken := map[string]bool{}
	var take func(string) error
	take = func(part string) error {
		if taken[part] {
			return nil
		}
		taken[part] = true
		d, err := load(part)
		if err != nil {
			if part != name {
				err = fmt.Errorf("of its part %s: %w", part, err)
			}
			return err
		}
		for _, e := range d.entries {
			if e.part == "" {
				rules = append(rules, chainedRule{e.filterRule, d.filterChain})
			} else if err := take(e.part); err != nil {
				return err
			}
		}
		return nil
	}
	err = take(name)
	return rules, err
}
