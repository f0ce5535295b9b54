package libvirt

import (
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

// A filterDefinition is a filter as libvirt has it, with the names of those that are
// part of it.
type filterDefinition struct {
	chain    string // "root", or where frames of a protocol are led to
	priority int    // of the chain
	rules    []filterRule
	parts    []string
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
	d.chain = rootChain
	if chain := attrs["chain"]; chain != "" {
		d.chain = chain
	}
	if d.chain != rootChain && chainProtocol(d.chain) == "" {
		return d, fmt.Errorf("its chain %s is not known", d.chain)
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
			d.parts = append(d.parts, part.attributes()["filter"])
		case "rule":
			r, err := parseRule(part)
			if err != nil {
				return d, err
			}
			d.rules = append(d.rules, r)
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

// maxFilterParts bounds how many filters one may consist of.
const maxFilterParts = 100

// filterParts gives a filter and all that are part of it, each once.
func filterParts(name string, load func(string) (filterDefinition, error)) (parts []filterDefinition, err error) {
	names := []string{name}
	for i := 0; i < len(names); i++ {
		if i == maxFilterParts {
			return nil, fmt.Errorf("it consists of more than %d filters", maxFilterParts)
		}
		d, err := load(names[i])
		if err != nil {
			if names[i] != name {
				err = fmt.Errorf("of its part %s: %w", names[i], err)
			}
			return nil, err
		}
		parts = append(parts, d)
		for _, part := range d.parts {
			if !slices.Contains(names, part) {
				names = append(names, part)
			}
		}
	}
	return parts, nil
}
