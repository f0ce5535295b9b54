package guestbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// defaultRules are those of a kernel that nobody has told of others, by their priority.
var defaultRules = map[uint8]map[uint32]uint32{
	unix.AF_INET:  {0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN, 32767: unix.RT_TABLE_DEFAULT},
	unix.AF_INET6: {0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN},
}

// hasOtherRules says whether rules of a family lead packets to other tables than the
// main one, or may do so.
func hasOtherRules(family uint8) (bool, error) {
	ask := make([]byte, sizeofRuleHeader)
	ask[0] = family
	others, found := false, 0
	err := dump(syscall.RTM_GETRULE, ask, func() { others, found = false, 0 }, func(m syscall.NetlinkMessage) {
		if isDefaultRule(m.Data) {
			found++
		} else {
			others = true
		}
	})
	if errors.Is(err, syscall.EOPNOTSUPP) { // a kernel without rules
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("listing rules of routing: %w", err)
	}
	return others || found != len(defaultRules[family]), nil
}

const (
	sizeofRuleHeader = 12
	ruleToTable      = 1 // FR_ACT_TO_TBL
	noPrefixLimit    = ^uint32(0)
)

func isDefaultRule(b []byte) bool {
	if len(b) < sizeofRuleHeader {
		return false
	}
	destBits, sourceBits, tos, table, action := b[1], b[2], b[3], uint32(b[4]), b[7]
	if destBits != 0 || sourceBits != 0 || tos != 0 || action != ruleToTable || binary.NativeEndian.Uint32(b[8:]) != 0 {
		return false
	}
	attrs := attributes(b[sizeofRuleHeader:])
	for a, value := range attrs {
		switch a {
		case unix.FRA_PRIORITY, unix.FRA_PROTOCOL, unix.FRA_PAD:
		case unix.FRA_TABLE:
			table = readNumber(value)
		case unix.FRA_SUPPRESS_PREFIXLEN:
			if readNumber(value) != noPrefixLimit {
				return false
			}
		default:
			return false
		}
	}
	want, ok := defaultRules[b[0]][readNumber(attrs[unix.FRA_PRIORITY])]
	return ok && table == want
}
