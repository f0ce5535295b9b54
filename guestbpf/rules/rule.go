package rules

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The bounds of a set of rules.
const (
	// Max is the number of rules in a set.
	Max = 256
	// MaxRated is the number of those that have a rate: a frame may be held against
	// each of them.
	MaxRated = 16
)

// A Rule says what becomes of the frames that it matches. A zero field matches all.
type Rule struct {
	Line     int // where it stands, from 1
	Drop     bool
	From, To netip.Prefix
	Proto    *uint8
	Sport    *Range
	Dport    *Range
	Flags    Flags
	Fragment Fragment
	Length   *Range // of the frame in bytes, from the destination address on, without FCS
	// Rate in frames per second: the rule matches only those beyond it. 0: all.
	Rate uint64
	// PerSource says that each source has the rate for itself.
	PerSource bool
}

// A Range is of numbers, both ends included.
type Range struct{ First, Last uint16 }

// Has says whether n is in the range.
func (r Range) Has(n uint16) bool { return r.First <= n && n <= r.Last }

func (r Range) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Flags are those of a TCP header that must be set, and must be clear.
type Flags struct{ Set, Clear uint8 }

var flagNames = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"}

// Has says whether a header's flags are as wanted.
func (f Flags) Has(flags uint8) bool { return flags&(f.Set|f.Clear) == f.Set }

func (f Flags) String() string {
	var words []string
	for i, name := range flagNames {
		switch bit := uint8(1) << i; {
		case f.Set&bit != 0:
			words = append(words, name)
		case f.Clear&bit != 0:
			words = append(words, "!"+name)
		}
	}
	return strings.Join(words, ",")
}

// A Fragment says which part of a packet a frame has.
type Fragment string

// The values of Fragment.
const (
	AnyFragment   Fragment = "any"   // of several: the first or a later one
	FirstFragment Fragment = "first" // which has the ports
	LaterFragment Fragment = "later"
	NoFragment    Fragment = "no" // the whole packet
)

var protocols = []struct {
	name   string
	number uint8
	ports  bool
}{
	{"icmp", 1, false}, {"igmp", 2, false}, {"tcp", 6, true}, {"udp", 17, true}, {"dccp", 33, true},
	{"gre", 47, false}, {"esp", 50, false}, {"ah", 51, false}, {"icmpv6", 58, false},
	{"sctp", 132, true}, {"udplite", 136, true},
}

func protocolName(number uint8) string {
	for _, p := range protocols {
		if p.number == number {
			return p.name
		}
	}
	return strconv.Itoa(int(number))
}

// String gives the rule in the language that it was read from.
func (r Rule) String() string {
	words := []string{"pass"}
	if r.Drop {
		words[0] = "drop"
	}
	add := func(w ...string) { words = append(words, w...) }
	if r.From.IsValid() {
		add("from", r.From.String())
	}
	if r.To.IsValid() {
		add("to", r.To.String())
	}
	if r.Proto != nil {
		add("proto", protocolName(*r.Proto))
	}
	if r.Sport != nil {
		add("sport", r.Sport.String())
	}
	if r.Dport != nil {
		add("dport", r.Dport.String())
	}
	if r.Flags != (Flags{}) {
		add("flags", r.Flags.String())
	}
	if r.Fragment != "" {
		add("fragment", string(r.Fragment))
	}
	if r.Length != nil {
		add("length", r.Length.String())
	}
	if r.Rate > 0 {
		add("over", fmt.Sprintf("%d/s", r.Rate))
	}
	if r.PerSource {
		add("per-source")
	}
	return strings.Join(words, " ")
}
