package bridge

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A look that has no time to read all ports' tables has nothing wrong all the same, and
// some looks together find everything.
func TestLookWithoutTime(t *testing.T) {
	const bound, each = 200, 100 // more than are asked for at once
	newNetns(t)
	br := addBridge(t, "br0")
	var taps []tap
	f := follow(t, Options{})
	for _, name := range []string{"vnet0", "vnet1", "vnet2", "vnet3"} {
		p := addTap(t, name)
		enslave(t, p.index, br)
		f.wantPort("the tap forwards", p.index, func(p vswitch.Port) bool { return p.STP == vswitch.STPForwarding })
		taps = append(taps, p)
	}
	for i, p := range taps {
		for n := range each {
			p.send(t, mac(1000*i+n))
		}
	}
	f.sync()
	m := open(t, Options{PerPort: bound})
	if m.Partial() || len(m.FDB) < each*len(taps) {
		t.Fatalf("a fresh mirror has %d entries, and is partial: %v", len(m.FDB), m.Partial())
	}
	readAll(t, m)
	// All of this happens while nobody hears of it.
	const moved, gone, fresh = 17, 1017, 500
	taps[1].send(t, mac(moved))
	must(t, netlink.NeighDel(neigh(taps[1].index, mac(gone), 0, 0, 0)))
	for i, p := range taps {
		p.send(t, mac(1000*i+fresh))
	}
	f.sync()
	for queued(t, m) {
		_, err := m.Receive()
		must(t, err)
	}
	m.readFor, m.stale = 0, true
	at := func(n int) int { return m.FDB[vswitch.FDBKey{Bridge: br, MAC: mac(n)}].Port }
	looks := 0
	for ; looks == 0 || m.Partial(); looks++ {
		if looks > len(m.Ports)+len(m.Bridges) {
			t.Fatalf("%d looks have not read all", looks)
		}
		_, err := m.Resync()
		must(t, err)
		checkInvariants(t, m)
		if at(moved) != taps[1].index || at(gone) != 0 || at(2000) != taps[2].index {
			t.Errorf("after %d looks: moved to %d, gone %d, left alone %d", looks+1, at(moved), at(gone), at(2000))
		}
		found := 0
		for i := range taps {
			if at(1000*i+fresh) != 0 {
				found++
			}
		}
		if found > looks+1 {
			t.Errorf("%d looks without time have read %d ports", looks+1, found)
		}
	}
	f.wantFresh() // the other one has heard of all
	for key, e := range f.FDB {
		if got := m.FDB[key]; got.Port != e.Port || got.Origin != e.Origin {
			t.Errorf("the mirror has %+v, the bridge %+v", got, e)
		}
	}
	if len(m.FDB) != len(f.FDB) {
		t.Errorf("the mirror has %d entries, the bridge %d", len(m.FDB), len(f.FDB))
	}
}

// A port without room keeps the entries that it has through every look, whatever the
// guest adds.
func TestFullPortKeepsItsEntries(t *testing.T) {
	const bound = 50
	br, taps, _ := forwarding(t, 1)
	p := taps[0]
	m := open(t, Options{PerPort: bound})
	for n := range 500 {
		p.send(t, mac(n))
	}
	readAll(t, m)
	for range 3 {
		_, err := m.Resync()
		must(t, err)
		readAll(t, m)
		for n := range 500 {
			_, there := m.FDB[vswitch.FDBKey{Bridge: br, MAC: mac(n)}]
			if there != (n < bound) {
				t.Fatalf("address %d is in the mirror: %v", n, there)
			}
		}
		if len(m.Flooding()) != 1 {
			t.Error("the port is not shown as flooding")
		}
	}
}
