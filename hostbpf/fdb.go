package hostbpf

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	fdbWays    = int(hooksTableSizesFDB_WAYS)
	fdbBuckets = int(hooksTableSizesFDB_BUCKETS)
	fdbHost    = uint32(hooksTableSizesFDB_HOST)
	fdbUsed    = vswitch.VLAN(hooksTableSizesFDB_USED)

	// FDBCapacity is how many forwarding entries the datapath takes. Up to five for
	// four buckets, both buckets of a new address are practically never full: the
	// first such case was seen beyond 47,000 (TestTableTakesItsCapacity).
	FDBCapacity = fdbBuckets * 5 / 4
)

// An fdbTable writes the datapath's forwarding table, which bpf/fdb.h reads.
// See struct fdb_entry for the order in which an entry's fields are stored.
type fdbTable struct {
	buckets []hooksFdbBucket
	seed    [3]uint64
	graves  *graveyard
	// index tells where each entry lies: bucket * ways + way.
	index map[fdbIndexKey]int32
	// resting are places whose entries have been removed lately. An address that
	// comes back gets its own again at once: a program that has found its key
	// reads a true dest either way.
	resting map[fdbIndexKey]grave
	removed uint64 // entries, ever
	// used counts the places of a bucket that are not free, graves included.
	used []uint8

	// fixed tells of each place whether its entry did not come by learning: such
	// ones are the last to give way.
	fixed  []bool
	shares shares
}

// A grave is a place that waits for its grace period, which its number tells from
// earlier ones.
type grave struct {
	place  int32
	number uint64
}

// An fdbIndexKey is what an entry's key and the upper half of its dest say.
type fdbIndexKey struct {
	key    uint64
	bridge uint16
}

// newSeeds draws the multipliers of the table's hashes.
func newSeeds() (seed [3]uint64) {
	var b [24]byte
	rand.Read(b[:])
	for i := range seed {
		seed[i] = binary.NativeEndian.Uint64(b[8*i:]) | 1
	}
	return seed
}

// newFDBTable takes over the table in buckets. No program may be looking at it
// in a state from before the last grace period.
func newFDBTable(buckets []hooksFdbBucket, seed [3]uint64, graves *graveyard) *fdbTable {
	t := &fdbTable{
		buckets: buckets, seed: seed, graves: graves,
		index: map[fdbIndexKey]int32{}, resting: map[fdbIndexKey]grave{}, used: make([]uint8, len(buckets)),
		fixed: make([]bool, len(buckets)*fdbWays),
	}
	for b := range buckets {
		for w := range fdbWays {
			e := &buckets[b].Way[w]
			if e.Key == 0 {
				// Empty, or its writer ended in the midst of adding or removing it.
				atomic.StoreUint32(&e.Dest, 0)
				continue
			}
			t.index[fdbIndexKey{e.Key, uint16(e.Dest >> 16)}] = int32(b*fdbWays + w)
			t.used[b]++
			t.shares.add(e.Dest&0xffff, 1)
		}
	}
	return t
}

// fdbKey is fdb_key() of bpf/fdb.h.
func fdbKey(mac vswitch.MAC, vlan vswitch.VLAN) uint64 {
	return uint64(binary.NativeEndian.Uint32(mac[:])) |
		uint64(binary.NativeEndian.Uint16(mac[4:]))<<32 | uint64(fdbUsed|vlan)<<48
}

// splitKey is the inverse of fdbKey.
func splitKey(key uint64) (mac vswitch.MAC, vlan vswitch.VLAN) {
	binary.NativeEndian.PutUint32(mac[:], uint32(key))
	binary.NativeEndian.PutUint16(mac[4:], uint16(key>>32))
	return mac, vswitch.VLAN(key>>48) &^ fdbUsed
}

// bucket is the choice'th bucket of an entry, as fdb_find() has it.
func (t *fdbTable) bucket(k fdbIndexKey, choice int) int {
	mixed := (k.key + uint64(k.bridge)*0x9e3779b97f4a7c15) * t.seed[0]
	mixed ^= mixed >> 32
	return int(mixed * t.seed[1+choice] >> (64 - int(hooksTableSizesFDB_BUCKET_BITS)))
}

func (t *fdbTable) entry(place int32) *hooksFdbEntry {
	return &t.buckets[int(place)/fdbWays].Way[int(place)%fdbWays]
}

// set adds an entry or changes where it leads. fixed says that it did not come by
// learning.
func (t *fdbTable) set(k fdbIndexKey, slot uint32, fixed bool) error {
	err := t.place(k, slot)
	if err == nil {
		t.fixed[t.index[k]] = fixed
	}
	return err
}

func (t *fdbTable) place(k fdbIndexKey, slot uint32) error {
	dest := uint32(k.bridge)<<16 | slot
	if place, ok := t.index[k]; ok {
		if e := t.entry(place); e.Dest != dest { // don't pull its line from the programs for nothing
			t.shares.add(e.Dest&0xffff, -1)
			t.shares.add(slot, 1)
			atomic.StoreUint32(&e.Dest, dest)
		}
		return nil
	}
	if len(t.index) >= FDBCapacity && !t.makeRoom(slot) {
		return fmt.Errorf("adding an entry beyond %d: %w", FDBCapacity, vswitch.ErrFull)
	}
	if g, ok := t.resting[k]; ok {
		delete(t.resting, k)
		t.put(k, g.place, dest)
		return nil
	}
	// The first bucket, which look-ups try first, unless it fills up.
	b, second := t.bucket(k, 0), t.bucket(k, 1)
	if t.used[b] >= 2 && t.used[second] < t.used[b] {
		b = second
	}
	for w := range fdbWays {
		place := int32(b*fdbWays + w)
		e := t.entry(place)
		if e.Key != 0 || e.Dest != 0 {
			continue
		}
		t.put(k, place, dest)
		t.used[b]++
		return nil
	}
	return fmt.Errorf("adding an entry to full buckets: %w", vswitch.ErrFull)
}

// put writes an entry into a place that no program finds yet.
func (t *fdbTable) put(k fdbIndexKey, place int32, dest uint32) {
	e := t.entry(place)
	atomic.StoreUint32(&e.Seen, 0)
	atomic.StoreUint32(&e.Dest, dest)
	atomic.StoreUint64(&e.Key, k.key)
	t.index[k] = place
	t.shares.add(dest&0xffff, 1)
}

// remove takes an entry out. Its place is used again after a grace period,
// which the dest left behind stands for.
func (t *fdbTable) remove(k fdbIndexKey) {
	place, ok := t.index[k]
	if !ok {
		return
	}
	delete(t.index, k)
	e := t.entry(place)
	t.shares.add(e.Dest&0xffff, -1)
	atomic.StoreUint64(&e.Key, 0)
	t.removed++
	g := grave{place, t.removed}
	t.resting[k] = g
	t.graves.bury(func() {
		if t.resting[k] != g {
			return // it came back meanwhile
		}
		delete(t.resting, k)
		atomic.StoreUint32(&e.Dest, 0)
		t.used[int(place)/fdbWays]--
	})
}

// removeIf takes out all entries for which drop says so.
func (t *fdbTable) removeIf(drop func(k fdbIndexKey, slot uint32) bool) {
	var gone []fdbIndexKey
	for k, e := range t.all() {
		if drop(k, e.Dest&0xffff) {
			gone = append(gone, k)
		}
	}
	for _, k := range gone {
		t.remove(k)
	}
}

// all gives the entries with the slots they lead to.
func (t *fdbTable) all() iter.Seq2[fdbIndexKey, *hooksFdbEntry] {
	return func(yield func(fdbIndexKey, *hooksFdbEntry) bool) {
		for k, place := range t.index {
			if !yield(k, t.entry(place)) {
				return
			}
		}
	}
}
