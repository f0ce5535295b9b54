package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	cmpEqual      = 0  // NFT_CMP_EQ
	setElemKeyEnd = 10 // NFTA_SET_ELEM_KEY_END, Linux 5.6, which golang.org/x/sys lacks
	noDevice      = -1 // is no device's ifindex
)

// readPorts gives the devices that the rules of a chain name, nil if any rule may
// hold for others too. libvirt's filters name each guest's device in a rule, or all
// of them in a map.
func readPorts(c *netlink.Conn, ch chain) ([]portMatch, error) {
	answers, err := nftList(c, unix.NFT_MSG_GETRULE, ch.family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, ch.table)
		ae.String(unix.NFTA_RULE_CHAIN, ch.effect.chain)
	})
	if err != nil {
		return nil, fmt.Errorf("listing rules: %w", err)
	}
	var ports []portMatch
	for _, m := range answers {
		expressions, in, err := parseRule(m.Data)
		if err != nil {
			return nil, fmt.Errorf("reading a rule: %w", err)
		}
		// Before Linux 5.14 or so a dump has all of a table.
		if in != ch.effect.chain {
			continue
		}
		match, err := rulePorts(c, ch, expressions)
		if err != nil || len(match) == 0 {
			return nil, err
		}
		for _, p := range match {
			if !slices.Contains(ports, p) {
				ports = append(ports, p)
			}
		}
	}
	return ports, nil
}

// An expression is a step of a rule.
type expression struct {
	name string
	data map[uint16][]byte // attributes by type
}

func (e expression) number(attribute uint16) (uint32, bool) {
	b, ok := e.data[attribute]
	if !ok || len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

// pure says whether the expression only looks at the frame, and may end the rule.
func (e expression) pure() bool {
	switch e.name {
	case "meta":
		return e.data[unix.NFTA_META_SREG] == nil
	case "payload":
		return e.data[unix.NFTA_PAYLOAD_SREG] == nil
	case "cmp", "bitwise":
		return true
	}
	return false
}

// rulePorts gives the devices that a rule names before it does anything else; none
// if it names none in a way that is known here.
func rulePorts(c *netlink.Conn, ch chain, rule []expression) ([]portMatch, error) {
	for i, e := range rule {
		if !e.pure() || i+1 == len(rule) {
			return nil, nil
		}
		m, register, ok := deviceLoad(e)
		if !ok {
			continue
		}
		next := rule[i+1]
		switch from, _ := next.number(unix.NFTA_CMP_SREG); {
		case next.name == "cmp" && from == register:
			return compared(next, m, rule[i+2:])
		case next.name == "lookup":
			return lookedUp(c, ch, next, m, register)
		}
		return nil, nil
	}
	return nil, nil
}

// A load says what a register then holds.
type load struct {
	direction vswitch.Direction
	byName    bool
}

// deviceLoad reads an expression that puts a frame's device into a register.
func deviceLoad(e expression) (l load, register uint32, ok bool) {
	key, _ := e.number(unix.NFTA_META_KEY)
	register, _ = e.number(unix.NFTA_META_DREG)
	if e.name != "meta" {
		return load{}, 0, false
	}
	switch key {
	case unix.NFT_META_IIF:
		return load{vswitch.In, false}, register, true
	case unix.NFT_META_IIFNAME:
		return load{vswitch.In, true}, register, true
	case unix.NFT_META_OIF:
		return load{vswitch.Out, false}, register, true
	case unix.NFT_META_OIFNAME:
		return load{vswitch.Out, true}, register, true
	}
	return load{}, 0, false
}

// match gives the device that a value in a rule stands for. A name that does not
// fill the register is a prefix.
func (l load) match(value []byte) (portMatch, bool) {
	switch {
	case l.byName && len(value) <= unix.IFNAMSIZ && len(value) > 0:
		name := text(value)
		return portMatch{deviceMatch: deviceMatch{name: name, prefix: len(name) == len(value)}, direction: l.direction}, true
	case !l.byName && len(value) == 4:
		ifindex := int(native.Uint32(value))
		return portMatch{ifindex: ifindex, direction: l.direction}, ifindex > 0
	}
	return portMatch{}, false
}

func compared(e expression, l load, rest []expression) ([]portMatch, error) {
	if op, ok := e.number(unix.NFTA_CMP_OP); !ok || op != cmpEqual {
		return nil, nil
	}
	value, err := dataValue(e.data[unix.NFTA_CMP_DATA])
	if err != nil {
		return nil, err
	}
	m, ok := l.match(value)
	if !ok {
		return nil, nil
	}
	chain, err := jumpsTo(rest)
	m.filter = m.leadsToFilter(chain)
	return []portMatch{m}, err
}

// lookedUp gives the devices of the set, or map, that a register is looked up in.
func lookedUp(c *netlink.Conn, ch chain, e expression, l load, register uint32) ([]portMatch, error) {
	from, _ := e.number(unix.NFTA_LOOKUP_SREG)
	inverted, _ := e.number(unix.NFTA_LOOKUP_FLAGS)
	if from != register || inverted != 0 {
		return nil, nil
	}
	set := text(e.data[unix.NFTA_LOOKUP_SET])
	values, err := setValues(c, ch, set)
	if err != nil {
		return nil, fmt.Errorf("reading set %s: %w", set, err)
	}
	var ports []portMatch
	for _, v := range values {
		m, ok := l.match(v)
		if !ok {
			return nil, nil
		}
		// In a set all keys are of one length.
		m.prefix = false
		ports = append(ports, m)
	}
	if len(ports) == 0 {
		// Nothing is in it yet, so the rule holds for no device.
		ports = []portMatch{{ifindex: noDevice}}
	}
	return ports, nil
}

// setValues gives the keys of a set that only its owner changes and that are no
// intervals; for any other it gives one that is no device.
func setValues(c *netlink.Conn, ch chain, set string) ([][]byte, error) {
	unknown := [][]byte{nil}
	answers, err := nftGet(c, unix.NFT_MSG_GETSET, 0, ch.family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_TABLE, ch.table)
		ae.String(unix.NFTA_SET_NAME, set)
	})
	if err != nil {
		return nil, err
	}
	for _, m := range answers {
		_, ad, err := attributes(m.Data)
		if err != nil {
			return nil, err
		}
		for ad.Next() {
			if ad.Type() == unix.NFTA_SET_FLAGS && ad.Uint32()&(unix.NFT_SET_INTERVAL|unix.NFT_SET_TIMEOUT|unix.NFT_SET_EVAL) != 0 {
				return unknown, ad.Err()
			}
		}
		if err := ad.Err(); err != nil {
			return nil, err
		}
	}
	answers, err = nftList(c, unix.NFT_MSG_GETSETELEM, ch.family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, ch.table)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	})
	if err != nil {
		return nil, err
	}
	var values [][]byte
	for _, m := range answers {
		_, ad, err := attributes(m.Data)
		if err != nil {
			return nil, err
		}
		for ad.Next() {
			if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					value, err := elementKey(ad.Bytes())
					if err != nil {
						return err
					}
					values = append(values, value)
				}
				return nil
			})
		}
		if err := ad.Err(); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// elementKey gives the key of a set's element, nil if it stands for several.
func elementKey(element []byte) (key []byte, err error) {
	ad, err := netlink.NewAttributeDecoder(element)
	if err != nil {
		return nil, err
	}
	several := false
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			if key, err = dataValue(ad.Bytes()); err != nil {
				return nil, err
			}
		case unix.NFTA_SET_ELEM_FLAGS, setElemKeyEnd:
			several = true // an interval's end, or what matches if nothing else does
		}
	}
	if several {
		return nil, ad.Err()
	}
	return key, ad.Err()
}

// dataValue gives what a data attribute holds.
func dataValue(data []byte) (value []byte, err error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_DATA_VALUE {
			value = ad.Bytes()
		}
	}
	return value, ad.Err()
}

// parseRule reads the answer about one rule.
func parseRule(data []byte) (rule []expression, chain string, err error) {
	_, ad, err := attributes(data)
	if err != nil {
		return nil, "", err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_CHAIN:
			chain = ad.String()
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					e := expression{}
					ad.Nested(e.parse)
					rule = append(rule, e)
				}
				return nil
			})
		}
	}
	return rule, chain, ad.Err()
}

func (e *expression) parse(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			e.name = ad.String()
		case unix.NFTA_EXPR_DATA:
			e.data = map[uint16][]byte{}
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					e.data[ad.Type()] = ad.Bytes()
				}
				return nil
			})
		}
	}
	return nil
}

// nftList asks for a list of what the attributes name.
func nftList(c *netlink.Conn, message int, family uint8, of func(*netlink.AttributeEncoder)) ([]netlink.Message, error) {
	return nftGet(c, message, netlink.Dump, family, of)
}

// nftGet asks for what the attributes name. What has gone since the chains were
// listed counts as a change meanwhile.
func nftGet(c *netlink.Conn, message int, flags netlink.HeaderFlags, family uint8, of func(*netlink.AttributeEncoder)) ([]netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	of(ae)
	b, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	answers, err := nftSend(c, message, flags, family, b)
	if errors.Is(err, unix.ENOENT) {
		err = errInterrupted
	}
	return answers, err
}
