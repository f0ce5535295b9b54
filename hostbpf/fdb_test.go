package hostbpf

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tapswitch/tapswitch/vswitch"
)

// find is fdb_find() of bpf/fdb.h, after the fact.
func find(t *fdbTable, k fdbIndexKey) (dest uint32) {
	for choice := range 2 {
		b := &t.buckets[t.bucket(k, choice)]
		for i := range b.Way {
			if b.Way[i].Key == k.key && b.Way[i].Dest>>16 == uint32(k.bridge) {
				return b.Way[i].Dest
			}
		}
	}
	return 0
}

// release lets a grace period pass.
func (g *graveyard) release() {
	for _, f := range g.fresh {
		f()
	}
	g.fresh = nil
}

func newTable() *fdbTable {
	return newFDBTable(make([]hooksFdbBucket, fdbBuckets), newSeeds(), &graveyard{})
}

func randomMAC(r *rand.Rand) (m vswitch.MAC) {
	binary.NativeEndian.PutUint32(m[:], r.Uint32())
	binary.NativeEndian.PutUint16(m[4:], uint16(r.Uint32()))
	m[0] &^= 1
	return m
}

func TestKeyRoundTrip(t *testing.T) {
	for _, m := range []vswitch.MAC{{}, {2, 0, 0, 0, 0, 1}, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		for _, v := range []vswitch.VLAN{0, 1, 4094} {
			if mac, vlan := splitKey(fdbKey(m, v)); mac != m || vlan != v {
				t.Errorf("%s, VLAN %d came back as %s, VLAN %d", m, v, mac, vlan)
			}
		}
	}
}

// TestTableAgainstMap does random changes to a table and to a map, in few
// buckets so that they fill up.
func TestTableAgainstMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	table, want := newTable(), map[fdbIndexKey]uint32{}
	keys := make([]fdbIndexKey, 3000)
	for i := range keys {
		keys[i] = fdbIndexKey{fdbKey(randomMAC(r), 0), uint16(1 + r.IntN(3))}
	}
	// Many addresses in the buckets of the first.
	for i := 1; i < 40; i++ {
		for table.bucket(keys[i], 0) != table.bucket(keys[0], 0) {
			keys[i].key = fdbKey(randomMAC(r), 0)
		}
	}
	for i := range 60000 {
		k := keys[r.IntN(len(keys))]
		if i%3 == 0 {
			k = keys[r.IntN(40)]
		}
		switch r.IntN(3) {
		case 0:
			table.remove(k)
			delete(want, k)
		default:
			slot := uint32(1 + r.IntN(1000))
			err := table.set(k, slot, false)
			if errors.Is(err, vswitch.ErrFull) {
				if _, there := want[k]; there {
					t.Fatalf("no room to change an entry that is there")
				}
				break
			}
			want[k] = uint32(k.bridge)<<16 | slot
		}
		if r.IntN(200) == 0 {
			table.graves.release()
		}
		if got := find(table, k); got != want[k] {
			t.Fatalf("step %d: found %#x, want %#x", i, got, want[k])
		}
	}
	for _, k := range keys {
		if got := find(table, k); got != want[k] {
			t.Errorf("found %#x, want %#x", got, want[k])
		}
	}
	// Another process finds the same, half-written entries apart.
	for b := range table.buckets {
		for w := range table.buckets[b].Way {
			if e := &table.buckets[b].Way[w]; e.Key == 0 && e.Dest == 0 {
				e.Dest = 7 << 16 // a dest whose key was never stored
			}
		}
	}
	adopted := newFDBTable(table.buckets, table.seed, &graveyard{})
	if len(adopted.index) != len(want) {
		t.Errorf("adopted %d entries, want %d", len(adopted.index), len(want))
	}
	for k, place := range adopted.index {
		if got := adopted.entry(place).Dest; got != want[k] {
			t.Errorf("adopted %#x, want %#x", got, want[k])
		}
	}
	for b := range adopted.buckets {
		for _, e := range adopted.buckets[b].Way {
			if e.Key == 0 && e.Dest != 0 {
				t.Fatal("a half-written entry still takes a place")
			}
		}
	}
}

// TestBothBucketsFull has no room for an address, says so, and has it again once
// another has gone for good.
func TestBothBucketsFull(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	table := newTable()
	k := fdbIndexKey{fdbKey(vswitch.MAC{2}, 0), 1}
	var first fdbIndexKey
	for choice := range 2 {
		for b := table.bucket(k, choice); table.used[b] < uint8(fdbWays); {
			other := fdbIndexKey{fdbKey(randomMAC(r), 0), 1}
			if table.bucket(other, 0) != b {
				continue
			}
			if err := table.set(other, 1, false); err != nil {
				t.Fatal(err)
			}
			if first.key == 0 {
				first = other
			}
		}
	}
	if err := table.set(k, 1, false); !errors.Is(err, vswitch.ErrFull) {
		t.Fatalf("got %v, want %v", err, vswitch.ErrFull)
	}
	table.remove(first)
	if err := table.set(k, 1, false); !errors.Is(err, vswitch.ErrFull) {
		t.Errorf("before the grace period: got %v, want %v", err, vswitch.ErrFull)
	}
	table.graves.release()
	if err := table.set(k, 1, false); err != nil {
		t.Error(err)
	}
}

// TestRemovedPlaceRests makes sure that a program which has found a key just
// before its removal can't see another entry's dest there.
func TestRemovedPlaceRests(t *testing.T) {
	table := newTable()
	k := fdbIndexKey{fdbKey(vswitch.MAC{2}, 0), 1}
	if err := table.set(k, 5, false); err != nil {
		t.Fatal(err)
	}
	e := table.entry(table.index[k])
	table.remove(k)
	other := fdbIndexKey{bridge: k.bridge}
	for r := rand.New(rand.NewPCG(5, 6)); other.key == 0 || other == k || table.bucket(other, 0) != table.bucket(k, 0); {
		other.key = fdbKey(randomMAC(r), 0)
	}
	if err := table.set(other, 6, false); err != nil {
		t.Fatal(err)
	}
	if e.Dest != 1<<16|5 || e.Key != 0 {
		t.Errorf("a place was used again before its grace period: key %#x, dest %#x", e.Key, e.Dest)
	}
	table.graves.release()
	if e.Dest != 0 {
		t.Errorf("a place is not free after its grace period: dest %#x", e.Dest)
	}
}

// TestAddressComesBack many times within one grace period, and always finds room.
func TestAddressComesBack(t *testing.T) {
	table := newTable()
	k := fdbIndexKey{fdbKey(vswitch.MAC{2}, 0), 1}
	for i := range uint32(100) {
		if err := table.set(k, 1+i, false); err != nil {
			t.Fatalf("time %d: %v", i, err)
		}
		if got := find(table, k); got != 1<<16|(1+i) {
			t.Fatalf("time %d: found %#x", i, got)
		}
		table.remove(k)
		if got := find(table, k); got != 0 {
			t.Fatalf("time %d: found %#x after its removal", i, got)
		}
	}
	if err := table.set(k, 7, false); err != nil {
		t.Fatal(err)
	}
	table.graves.release() // of all the times before
	if got := find(table, k); got != 1<<16|7 {
		t.Errorf("found %#x after the grace period of an earlier removal", got)
	}
	table.remove(k)
	table.graves.release()
	if used := slices.Max(table.used); used != 0 || len(table.resting) != 0 {
		t.Errorf("%d places of a bucket are in use, and %d rest, of an empty table", used, len(table.resting))
	}
}

// TestTableTakesItsCapacity fills tables of several seeds with addresses as
// they are: random ones, ones that count up, and one router in many bridges.
func TestTableTakesItsCapacity(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, key := range map[string]func(i int) fdbIndexKey{
		"random": func(int) fdbIndexKey { return fdbIndexKey{fdbKey(randomMAC(r), 0), 1} },
		"counting up": func(i int) fdbIndexKey {
			return fdbIndexKey{fdbKey(vswitch.MAC{0x52, 0x54, 0, byte(i >> 16), byte(i >> 8), byte(i)}, 0), 1}
		},
		"one MAC, many bridges": func(i int) fdbIndexKey {
			return fdbIndexKey{fdbKey(vswitch.MAC{0, 0, 0x5e, 0, 1, byte(i >> 15)}, 0), uint16(1 + i&0x7fff)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 30 {
				table := newTable()
				for i := range FDBCapacity {
					if err := table.set(key(i), 1, false); err != nil {
						t.Fatalf("entry %d of %d: %v", i, FDBCapacity, err)
					}
				}
				err := table.set(fdbIndexKey{fdbKey(vswitch.MAC{4}, 0), 9}, 1, false)
				if !errors.Is(err, vswitch.ErrFull) {
					t.Errorf("one more than the capacity: got %v, want %v", err, vswitch.ErrFull)
				}
			}
		})
	}
}
