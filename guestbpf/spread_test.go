package guestbpf

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/tapswitch/tapswitch/guestbpf/rules"
)

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"0": {0}, "0-3,5": {0, 1, 2, 3, 5}, "7,1": {7, 1}, "2-2": {2},
		"": nil, "-": nil, "1-": nil, "3-1": nil, "a": nil, "1,1": nil, "0-2,1": nil, "99999": nil, "-1": nil, "1,": nil,
	} {
		if got, err := ParseCPUs(text); !slices.Equal(got, want) || (err != nil) != (want == nil) {
			t.Errorf("%q gave %v, error %v, want %v", text, got, err, want)
		}
	}
}

// TestSpread looks which of two CPUs flows go to. The second one is not there, so that
// its frames pass.
func TestSpread(t *testing.T) {
	spec, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	counts, err := ebpf.NewMap(spec.Maps[guestMapCounts])
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	then, err := loadPlain(counts, Pass, ebpf.AttachXDPCPUMap)
	if err != nil {
		t.Fatal(err)
	}
	defer then.Close()
	c, err := loadSpread(counts, []int{0, 0}, then.Programs[string(Pass)])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Maps[guestMapCpuList].Put(uint32(1), uint32(1)); err != nil {
		t.Fatal(err)
	}
	cpu := func(p probe) int {
		switch v := verdict(t, c.Programs[string(spread)], p.frame()); v {
		case xdpRedirect:
			return 0
		case xdpPass:
			return 1
		default:
			t.Fatalf("the verdict is %d", v)
			return -1
		}
	}
	for _, base := range []string{"198.18.0.0", "2001:db8::"} {
		for _, tt := range []struct {
			name string
			with func(p *probe, n uint16)
		}{
			{"ports", func(p *probe, n uint16) { p.sport = n }},
			{"hosts", func(p *probe, n uint16) { p.from = after(p.from, n) }},
			{"pairs", func(p *probe, n uint16) { p.from, p.to, p.sport = after(p.from, n), after(p.to, n), n }},
		} {
			const flows = 2000
			first := 0
			for n := range uint16(flows) {
				p := probe{from: netip.MustParseAddr(base), to: netip.MustParseAddr(base).Next(), proto: 17, dport: 53, fragment: rules.NoFragment, length: 60}
				tt.with(&p, n)
				there := cpu(p)
				if there == 0 {
					first++
				}
				p.from, p.to, p.sport, p.dport = p.to, p.from, p.dport, p.sport
				if back := cpu(p); back != there {
					t.Fatalf("%+v goes to CPU %d, and what comes back to CPU %d", p, there, back)
				}
				p.fragment = rules.FirstFragment
				one := cpu(p)
				if p.fragment = rules.LaterFragment; cpu(p) != one {
					t.Fatalf("fragments of %+v go to different CPUs", p)
				}
			}
			if first < flows*4/10 || first > flows*6/10 {
				t.Errorf("%s of %s: of %d flows %d went to the first of two CPUs", tt.name, base, flows, first)
			}
		}
	}
}

// after gives the address that is n behind another.
func after(a netip.Addr, n uint16) netip.Addr {
	b := a.AsSlice()
	b[len(b)-2], b[len(b)-1] = byte(n>>8), byte(n)
	a, _ = netip.AddrFromSlice(b)
	return a
}
