package bridge

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
)

func learnedAt(n, port int) vswitch.FDBEntry {
	return vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: 1, MAC: mac(n)}, Port: port, Origin: vswitch.OriginLearned}
}

// A mirror with bounds keeps no more than these, whatever the bridge has, and what
// it keeps is right: compared with the whole.
func TestBoundedMirror(t *testing.T) {
	newNetns(t)
	br := addBridge(t, "br0")
	p, q := addTap(t, "vnet0"), addTap(t, "vnet1")
	enslave(t, p.index, br)
	enslave(t, q.index, br)
	f := follow(t, Options{})
	for _, index := range []int{p.index, q.index} {
		f.wantPort("the tap forwards", index, func(p vswitch.Port) bool { return p.STP == vswitch.STPForwarding })
	}
	const bound = 50
	m := open(t, Options{PerPort: bound})
	check := func(when string, full ...int) {
		t.Helper()
		readAll(t, m)
		want := map[int]bool{}
		for _, index := range full {
			want[index] = true
		}
		whole := open(t, Options{})
		learned := map[int]int{}
		for key, e := range m.FDB {
			if w := whole.FDB[key]; w.Port != e.Port || w.Origin != e.Origin {
				t.Errorf("%s: the mirror has %+v, the bridge %+v", when, e, w)
			}
			if bounded(e) {
				learned[e.Port]++
			}
		}
		for port, n := range learned {
			if n > bound+3 { // addresses of the ports' own count too
				t.Errorf("%s: the mirror holds %d entries of port %d", when, n, port)
			}
		}
		for key, w := range whole.FDB {
			if _, ok := m.FDB[key]; !ok && !bounded(w) && !want[w.Port] {
				t.Errorf("%s: the mirror lacks %+v", when, w)
			}
		}
		flooding := map[int]bool{}
		for index := range m.Flooding() {
			flooding[index] = true
		}
		if diff := cmp.Diff(want, flooding); diff != "" {
			t.Errorf("%s: ports beyond their bound (-want +got):\n%s", when, diff)
		}
	}
	has := func(when string, n, port int) {
		t.Helper()
		key := vswitch.FDBKey{Bridge: br, MAC: mac(n)}
		if e, ok := m.FDB[key]; port == 0 && ok || port != 0 && (!ok || e.Port != port) {
			t.Errorf("%s: address %d is %+v (%v), want port %d", when, n, e, ok, port)
		}
	}
	for i := range 20 {
		q.send(t, mac(10000+i))
	}
	addEntries(t, p.index, 5000)
	check("after a flood", p.index)
	if n := m.Refused()[p.index]; n < 5000-bound || n > 5000 {
		t.Errorf("%d entries are counted as refused", n)
	}
	has("beside a flood", 10003, q.index)
	// The flooder takes others' addresses, which must not stay where they were.
	p.send(t, mac(10003))
	check("after a known address has moved beyond the bound", p.index)
	has("after its move", 10003, 0)
	q.send(t, mac(10003))
	check("after it has moved back", p.index)
	has("after its way back", 10003, q.index)
	for range 3 {
		if _, err := m.Resync(); err != nil {
			t.Fatal(err)
		}
		check("after everything was read again", p.index)
		has("after everything was read again", 10003, q.index)
	}
	if len(m.gate.known) != len(m.FDB) {
		t.Errorf("the gate knows %d entries, the mirror %d", len(m.gate.known), len(m.FDB))
	}
}

// What happens while everything is read again is heard of or not, but the mirror
// is right in the end: against a model, with a dump that has read each entry at
// any moment of the time.
func TestGateWhileReading(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const bound, addresses, ports = 5, 30, 3
	for round := range 2000 {
		g := newGate(bound, bound)
		kernel := map[vswitch.FDBKey]vswitch.FDBEntry{}
		mirror := blank(Options{})
		var queue []event
		change := func() {
			e := learnedAt(r.IntN(addresses), 10+r.IntN(ports))
			_, there := kernel[e.FDBKey]
			deleted := there && r.IntN(3) == 0
			if deleted {
				e = kernel[e.FDBKey]
				delete(kernel, e.FDBKey)
			} else {
				kernel[e.FDBKey] = e
			}
			if ev, hear := g.admit(deleted, e); hear {
				queue = append(queue, ev)
			}
		}
		drain := func() {
			for i := range queue {
				mirror.applyEntry(&queue[i], &Change{})
			}
			queue = nil
		}
		for range 60 {
			change()
		}
		if r.IntN(2) == 0 {
			drain()
		}
		epoch := g.begin()
		next := blank(Options{})
		for i := range addresses {
			for range r.IntN(3) {
				change()
			}
			if e, ok := kernel[learnedAt(i, 0).FDBKey]; ok && next.entries[e.Port] < bound {
				next.put(e)
			}
		}
		g.end(next, map[int]bool{})
		mirror = next
		mirror.epoch = epoch
		for range r.IntN(20) {
			change()
		}
		drain()
		for key, e := range mirror.FDB {
			if kernel[key] != e {
				t.Fatalf("round %d: the mirror has %+v, the kernel %+v", round, e, kernel[key])
			}
			if g.known[key] != owner(e) {
				t.Fatalf("round %d: the gate knows port %d of %+v", round, g.known[key], e)
			}
		}
		if len(g.known) != len(mirror.FDB) {
			t.Fatalf("round %d: the gate knows %d entries, the mirror has %d", round, len(g.known), len(mirror.FDB))
		}
	}
}

// What is not learned takes no room: a port has its own address in each of its VLANs.
func TestGateCountsLearnedEntriesAlone(t *testing.T) {
	g := newGate(2, 2)
	entry := func(vlan vswitch.VLAN, origin vswitch.Origin) vswitch.FDBEntry {
		return vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: 1, VLAN: vlan}, Port: 2, Origin: origin}
	}
	for v := range vswitch.VLAN(10) {
		g.admit(false, entry(1+v, vswitch.OriginLocal))
	}
	for v := range vswitch.VLAN(2) {
		if ev, hear := g.admit(false, entry(100+v, vswitch.OriginLearned)); ev.beyond || !hear {
			t.Errorf("learned entry %d is beyond the bound of 2", v)
		}
	}
	if ev, _ := g.admit(false, entry(102, vswitch.OriginLearned)); !ev.beyond {
		t.Error("a third learned entry is not beyond the bound of 2")
	}
}
