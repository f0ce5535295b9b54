package hostbpf

import (
	"math/rand/v2"
	"testing"

	"github.com/tapswitch/tapswitch/vswitch"
)

// TestPortIndexAgainstMap: every key leads where it should, devices are marked that
// have VLANs, and nothing is left in the end.
func TestPortIndexAgainstMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	x := portIndex{make([]uint64, portIndexSize), map[uint32]int{}}
	want := map[indexKey]uint32{}
	check := func() {
		t.Helper()
		vlans := map[uint32]bool{}
		for k, slot := range want {
			if got := x.slot(k); got != slot {
				t.Fatalf("%#x leads to slot %d, want %d", k, got, slot)
			}
			if tpid, _ := k.tag(); tpid != 0 {
				vlans[k.ifindex()] = true
			}
		}
		marked := 0
		for _, entry := range x.entries {
			if entry&indexCarrier == 0 {
				continue
			}
			if marked++; !vlans[indexKey(entry>>16).ifindex()] {
				t.Fatalf("%#x is marked and has no VLANs", entry)
			}
		}
		if marked != len(vlans) {
			t.Fatalf("%d devices are marked, want %d", marked, len(vlans))
		}
	}
	for round := range 20000 {
		ifindex := 1 + uint32(r.IntN(8))*1000
		k := deviceKey(ifindex)
		if r.IntN(4) > 0 {
			k = vlanKey(ifindex, []uint16{tpidQ, tpidAD}[r.IntN(2)], vswitch.VLAN(r.IntN(200)))
		}
		slot := 1 + uint32(r.IntN(PortCapacity))
		switch {
		case r.IntN(3) > 0:
			if x.put(k, slot) {
				want[k] = slot
			}
		case r.IntN(2) == 0:
			x.remove(k, slot) // another's, most often
			if want[k] == slot {
				delete(want, k)
			}
		default:
			x.remove(k, want[k])
			delete(want, k)
		}
		if round%500 == 0 {
			check()
		}
	}
	check()
	adopted := portIndex{x.entries, map[uint32]int{}}
	adopted.adopt(func(k indexKey, slot uint32) bool { return want[k] == slot })
	x = adopted
	check()
	for k, slot := range want {
		x.remove(k, slot)
	}
	for _, entry := range x.entries {
		if entry != 0 {
			t.Fatalf("%#x is left", entry)
		}
	}
}

// TestPortIndexFull: a VLAN for which there is no room changes nothing.
func TestPortIndexFull(t *testing.T) {
	x := portIndex{make([]uint64, portIndexSize), map[uint32]int{}}
	for i := range portIndexTries {
		if !x.put(deviceKey(7+(i+1)*portIndexSize), 1+i) {
			t.Fatalf("device %d of the same remainder: no room", i)
		}
	}
	if x.put(deviceKey(7), 9) {
		t.Error("there is room for one more of the same remainder")
	}
	if x.put(vlanKey(7, tpidQ, 100), 9) {
		t.Error("a VLAN was put in although its device can't be marked")
	}
	if x.slot(vlanKey(7, tpidQ, 100)) != 0 || len(x.vlans) != 0 {
		t.Error("what there was no room for is there")
	}
}
