package lab

import (
	"net/netip"
	"testing"
)

func TestJoin(t *testing.T) {
	a := testLab(t, Options{Guests: 1, NoHostAddr: true})
	b := testLab(t, Options{NoHostAddr: true})
	if err := a.Join(b); err != nil {
		t.Fatal(err)
	}
	there := netip.MustParseAddr("198.18.0.3")
	if err := b.Host.AddAddr(BridgeDev, onLink(there)); err != nil {
		t.Fatal(err)
	}
	for _, from := range []*Node{a.Wire, b.Wire, a.Guests[0].Node} {
		for _, to := range []netip.Addr{WireAddr4, there, a.Guests[0].Addr4} {
			if err := Ping(testContext(t), from, to, 2); err != nil {
				t.Error(err)
			}
		}
	}
	if err := Ping(testContext(t), a.Guests[0].Node, WireAddr6, 2); err != nil {
		t.Error(err)
	}
}
