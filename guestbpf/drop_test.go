package guestbpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/tapswitch/tapswitch/guestbpf/rules"
)

// A probe is a frame by its fields, out of few values so that rules meet it.
type probe struct {
	tags     int
	from, to netip.Addr // of one family; invalid: no IP
	proto    uint8
	sport    uint16
	dport    uint16
	flags    uint8
	fragment rules.Fragment
	options  int  // words of IPv4 options, or number of IPv6 extension headers
	length   int  // of the frame, at least
	cut      bool // behind the IP header
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

var (
	v4s    = []string{"198.18.0.1", "198.18.0.2", "198.18.128.1", "198.19.0.1", "0.0.0.0"}
	v6s    = []string{"2001:db8::1", "2001:db8::2", "2001:db8:1::1", "::", "::ffff:198.18.0.1", "c612:1::"}
	ports  = []uint16{0, 1, 52, 53, 54, 1023, 1024, 65535}
	protos = []uint8{1, 6, 6, 6, 17, 17, 58, 132, 89, 255}
)

func randomProbe(r *rand.Rand) probe {
	p := probe{
		tags: pick(r, 0, 0, 0, 1, 2), proto: pick(r, protos...), sport: pick(r, ports...), dport: pick(r, ports...),
		flags: uint8(r.Uint32()), fragment: pick(r, rules.NoFragment, rules.NoFragment, rules.FirstFragment, rules.LaterFragment),
		options: r.IntN(5), length: pick(r, 60, 100, 101, 1000, 1514), cut: r.IntN(20) == 0,
	}
	switch r.IntN(10) {
	case 0:
	case 1, 2, 3, 4, 5:
		p.from, p.to = netip.MustParseAddr(pick(r, v4s...)), netip.MustParseAddr(pick(r, v4s...))
	default:
		p.from, p.to = netip.MustParseAddr(pick(r, v6s...)), netip.MustParseAddr(pick(r, v6s...))
	}
	return p
}

// frame writes the probe, and sets its length to the one that it got.
func (p *probe) frame() []byte {
	f := make([]byte, 12)
	put := func(n ...uint16) {
		for _, v := range n {
			f = binary.BigEndian.AppendUint16(f, v)
		}
	}
	for range p.tags {
		put(0x8100, 7)
	}
	offset, more := uint16(0), p.fragment == rules.FirstFragment
	if p.fragment == rules.LaterFragment {
		offset = 185
	}
	switch {
	case !p.from.IsValid():
		put(0x0806)
	case p.from.Is4():
		put(0x0800, 0x4500+uint16(p.options)<<8, 1000, 7)
		fragment := offset
		if more {
			fragment |= 0x2000
		}
		put(fragment|uint16(pick(rand.New(rand.NewPCG(1, uint64(p.sport))), 0, 0x4000)), 64<<8+uint16(p.proto), 0)
		f = append(append(f, p.from.AsSlice()...), p.to.AsSlice()...)
		f = append(f, make([]byte, 4*p.options)...)
	default:
		next := p.proto
		var extensions []byte
		if p.fragment != rules.NoFragment {
			fragment := offset << 3
			if more {
				fragment |= 1
			}
			extensions = binary.BigEndian.AppendUint16([]byte{next, 0}, fragment)
			extensions = append(extensions, 0, 0, 0, 9)
			next = 44
		}
		for i := range p.options {
			words := i % 2
			extensions = append(append([]byte{next, byte(words)}, make([]byte, 6+8*words)...), extensions...)
			next = []byte{0, 43, 60}[i%3]
		}
		put(0x86dd, 0x6000, 0, 1000)
		f = append(f, next, 64)
		f = append(append(f, p.from.AsSlice()...), p.to.AsSlice()...)
		f = append(f, extensions...)
	}
	if !p.cut {
		put(p.sport, p.dport)
		f = append(f, make([]byte, 9)...)
		f = append(f, p.flags, 0, 0, 0, 0, 0, 0)
		f = append(f, make([]byte, max(0, p.length-len(f)))...)
	}
	p.length = len(f)
	return f
}

// meets is what a rule means, without tables.
func meets(r rules.Rule, p probe) bool {
	ip := p.from.IsValid()
	in := func(prefix netip.Prefix, a netip.Addr) bool { return !prefix.IsValid() || ip && prefix.Contains(a) }
	if !in(r.From, p.from) || !in(r.To, p.to) || r.Proto != nil && (!ip || *r.Proto != p.proto) {
		return false
	}
	readable := ip && !p.cut && p.fragment != rules.LaterFragment
	port := func(want *rules.Range, n uint16) bool { return want == nil || readable && want.Has(n) }
	if !port(r.Sport, p.sport) || !port(r.Dport, p.dport) {
		return false
	}
	if (r.Flags != rules.Flags{}) && !(readable && r.Flags.Has(p.flags)) {
		return false
	}
	fragment := rules.NoFragment
	if ip {
		fragment = p.fragment
	}
	switch r.Fragment {
	case "":
	case rules.AnyFragment:
		if fragment == rules.NoFragment {
			return false
		}
	default:
		if fragment != r.Fragment {
			return false
		}
	}
	return r.Length == nil || r.Length.Has(uint16(p.length))
}

// randomRules writes n rules, most of which meet something.
func randomRules(r *rand.Rand, n int) string {
	var b strings.Builder
	numbers := func() string {
		first, last := pick(r, ports...), pick(r, ports...)
		return rules.Range{First: min(first, last), Last: max(first, last)}.String()
	}
	for range n {
		b.WriteString(pick(r, "drop", "pass"))
		v4 := r.IntN(2) == 0
		for _, side := range []string{"from", "to"} {
			if r.IntN(2) == 0 {
				continue
			}
			a, bits := netip.MustParseAddr(pick(r, v4s...)), pick(r, 0, 15, 16, 17, 31, 32)
			if !v4 {
				a, bits = netip.MustParseAddr(pick(r, v6s...)), pick(r, 0, 1, 32, 48, 127, 128)
			}
			if prefix, err := a.Prefix(bits); err == nil && !a.Is4In6() {
				fmt.Fprintf(&b, " %s %s", side, prefix)
			}
		}
		proto := pick(r, protos...)
		if r.IntN(4) > 0 {
			fmt.Fprintf(&b, " proto %d", proto)
			if proto == 6 || proto == 17 || proto == 132 {
				b.WriteString(pick(r, "", " sport "+numbers()) + pick(r, "", " dport "+numbers()))
			}
			if proto == 6 {
				b.WriteString(pick(r, "", " flags syn", " flags syn,!ack", " flags !fin,!cwr"))
			}
		}
		b.WriteString(pick(r, "", "", "", " fragment any", " fragment first", " fragment later", " fragment no"))
		b.WriteString(pick(r, "", "", " length 0-100", " length 101-65535", " length 1514"))
		b.WriteString("\n")
	}
	return b.String()
}

// newDrop loads the program of a set of rules, attached nowhere.
func newDrop(t *testing.T, text string) (*ebpf.Collection, []rules.Rule) {
	t.Helper()
	set, err := rules.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	counts, err := ebpf.NewMap(spec.Maps[guestMapCounts])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	c, err := loadDrop(counts, set, ebpf.AttachNone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, set
}

const (
	xdpDrop = 1
	xdpPass = 2
)

func verdict(t *testing.T, p *ebpf.Program, frame []byte) uint32 {
	t.Helper()
	got, err := p.Run(&ebpf.RunOptions{Data: frame})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// What the tables say is what the rules say one by one.
func TestRulesAgainstLinear(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, n := range []int{0, 1, 2, 5, 20, 64, 65, 256} {
		text := randomRules(r, n)
		c, set := newDrop(t, text)
		wantCounts := make([]uint64, n)
		for range 3000 {
			p := randomProbe(r)
			frame := p.frame()
			want, by := uint32(xdpPass), -1
			for i, rule := range set {
				if meets(rule, p) {
					by = i
					wantCounts[i]++
					if rule.Drop {
						want = xdpDrop
					}
					break
				}
			}
			if got := verdict(t, c.Programs[guestProgDrop], frame); got != want {
				t.Fatalf("%d rules: %+v\n%x\nthe verdict is %d, want %d by rule %d of\n%s", n, p, frame, got, want, by, text)
			}
		}
		counted, err := readRules(c.Programs[guestProgDrop])
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range counted {
			if c.Frames != wantCounts[i] || c.Rule != set[i].String() {
				t.Errorf("rule %d, %q, counted %d frames, want %d of %q", i, c.Rule, c.Frames, wantCounts[i], set[i])
			}
		}
		if len(counted) != n {
			t.Errorf("%d rules were read back of %d", len(counted), n)
		}
	}
}

func TestRate(t *testing.T) {
	const long = "1000000000/s" // no frame is beyond it
	from := func(a string) []byte {
		addr := netip.MustParseAddr(a)
		p := probe{from: addr, to: addr, proto: 17, dport: 53, fragment: rules.NoFragment, length: 60}
		return p.frame()
	}
	t.Run("all together", func(t *testing.T) {
		c, _ := newDrop(t, "drop over "+long+"\ndrop proto udp over 5/s\npass\n")
		if got := dropped(t, c, 1000, from("198.18.0.1")); got != 995 {
			t.Errorf("%d of 1000 frames were dropped, want 995", got)
		}
	})
	t.Run("per source", func(t *testing.T) {
		c, _ := newDrop(t, "drop proto udp dport 53 over 5/s per-source")
		for _, a := range []string{"198.18.0.1", "198.18.0.2", "2001:db8::1", "2001:db8:1::1"} {
			if got := dropped(t, c, 1000, from(a)); got != 995 {
				t.Errorf("%d of 1000 frames from %s were dropped, want 995", got, a)
			}
		}
		// The first network's once more.
		if got := dropped(t, c, 1000, from("2001:db8::2")); got != 1000 {
			t.Errorf("%d of 1000 frames from a spent network were dropped, want all", got)
		}
	})
	t.Run("as many as a set may have", func(t *testing.T) {
		c, _ := newDrop(t, strings.Repeat("drop over "+long+"\n", rules.MaxRated)+"drop\n")
		if got := dropped(t, c, 10, from("198.18.0.1")); got != 10 {
			t.Errorf("%d of 10 frames were dropped by the rule behind %d with a rate", got, rules.MaxRated)
		}
	})
}

// dropped runs n frames at once, which takes far less than the second that a rate is
// of, and gives how many were dropped.
func dropped(t *testing.T, c *ebpf.Collection, n int, frame []byte) uint64 {
	t.Helper()
	counts := func() (sum uint64) {
		all, err := readRules(c.Programs[guestProgDrop])
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if strings.HasPrefix(r.Rule, "drop") {
				sum += r.Frames
			}
		}
		return sum
	}
	before := counts()
	if _, err := c.Programs[guestProgDrop].Run(&ebpf.RunOptions{Data: frame, Repeat: uint32(n)}); err != nil {
		t.Fatal(err)
	}
	return counts() - before
}
