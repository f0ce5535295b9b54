package vswitch

import (
	"fmt"
	"math/bits"
	"strings"
)

// A VLAN is a VLAN identifier, 1 to 4094; 0 stands for a bridge that does not tell
// VLANs apart, and for no VLAN.
type VLAN uint16

// VLANs is how many identifiers there are, of which the first and the last are none.
const VLANs = 4096

// A VLANSet says which VLANs a port of a VLAN-aware bridge is in. It is not changed
// any more once it is part of a Port, so that two ports with the same pointer are
// the same.
type VLANSet struct {
	PVID VLAN // of frames that come without a tag; 0: those are dropped
	// Of has two bits for each VLAN, 32 VLANs to a word, as the datapath has them.
	Of [VLANs / 32]uint64
}

// What the two bits of a VLAN say.
const (
	vlanMember   = 1
	vlanUntagged = 2
	vlanBits     = 3
)

// Put makes the port a member of a VLAN, whose frames leave with a tag or without.
func (s *VLANSet) Put(v VLAN, untagged bool) {
	s.Remove(v)
	bits := uint64(vlanMember)
	if untagged {
		bits |= vlanUntagged
	}
	s.Of[v/32] |= bits << (v % 32 * 2)
}

// Remove takes the port out of a VLAN.
func (s *VLANSet) Remove(v VLAN) { s.Of[v/32] &^= vlanBits << (v % 32 * 2) }

// Has says whether the port is in a VLAN, and whether frames leave without a tag.
func (s *VLANSet) Has(v VLAN) (member, untagged bool) {
	bits := s.Of[v/32] >> (v % 32 * 2)
	return bits&vlanMember != 0, bits&vlanUntagged != 0
}

// Len gives the number of VLANs.
func (s *VLANSet) Len() (n int) {
	const members = 0x5555555555555555 // the lower of each two bits
	for _, word := range s.Of {
		n += bits.OnesCount64(word & members)
	}
	return n
}

// String gives the set as people write it: "1 pvid untagged, 10-19, 30 untagged".
func (s *VLANSet) String() string {
	var list []string
	describe := func(v VLAN) string {
		member, untagged := s.Has(v)
		text := ""
		if v == s.PVID {
			text += " pvid"
		}
		if untagged {
			text += " untagged"
		}
		if !member {
			return ""
		}
		return text + ","
	}
	for first := VLAN(0); first < VLANs; first++ {
		what := describe(first)
		if what == "" {
			continue
		}
		last := first
		for last+1 < VLANs && describe(last+1) == what {
			last++
		}
		text := fmt.Sprint(first)
		if last > first {
			text += fmt.Sprintf("-%d", last)
		}
		list = append(list, text+strings.TrimSuffix(what, ","))
		first = last
	}
	return strings.Join(list, ", ")
}
