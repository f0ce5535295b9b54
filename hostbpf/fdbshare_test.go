package hostbpf

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/tapswitch/tapswitch/vswitch"
)

// sharedTable is a table with an uplink in slot 1 and guests in all from 2 on.
func sharedTable(guests int) *fdbTable {
	t := newTable()
	slots := make([]hooksPort, portSlots)
	slots[1] = hooksPort{Ifindex: 1, Role: uint32(vswitch.RoleUplink)}
	for i := range guests {
		slots[2+i] = hooksPort{Ifindex: uint32(2 + i), Role: uint32(vswitch.RoleGuest)}
	}
	t.shares.setPorts(slots)
	return t
}

// fill adds up to n new entries of a slot and gives those that there was room for.
func fill(t *testing.T, table *fdbTable, r *rand.Rand, slot uint32, n int, fixed bool) (got []fdbIndexKey) {
	t.Helper()
	for i := 0; i < n; i++ {
		k := fdbIndexKey{fdbKey(randomMAC(r), 0), 1}
		if len(table.graves.fresh) > 1000 {
			table.graves.release()
		}
		crowded := int(min(table.used[table.bucket(k, 0)], table.used[table.bucket(k, 1)])) == fdbWays
		switch err := table.set(k, slot, fixed); {
		case err == nil:
			got = append(got, k)
		case crowded:
			i-- // that is chance, whosever the entry is: take another
		case !errors.Is(err, vswitch.ErrFull):
			t.Fatal(err)
		}
	}
	if len(table.index) > FDBCapacity {
		t.Fatalf("%d entries are in a table for %d", len(table.index), FDBCapacity)
	}
	return got
}

// alive counts the entries that are still there.
func alive(table *fdbTable, keys []fdbIndexKey) (n int) {
	for _, k := range keys {
		if find(table, k) != 0 {
			n++
		}
	}
	return n
}

// However many entries guests want that flood, others keep what they have and get
// what they need.
func TestFloodTakesNobodysPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	table := sharedTable(50)
	uplink := fill(t, table, r, 1, 10000, false)
	quiet := fill(t, table, r, 2, 5, false)
	for round := range 20 {
		for slot := uint32(10); slot < 50; slot++ {
			fill(t, table, r, slot, 1500, false)
		}
		if got := alive(table, uplink); got != len(uplink) {
			t.Fatalf("round %d: the flood has taken %d entries of the uplink", round, len(uplink)-got)
		}
		if got := alive(table, quiet); got != len(quiet) {
			t.Fatalf("round %d: the flood has taken %d entries of a guest", round, len(quiet)-got)
		}
		more := fill(t, table, r, uint32(3+round%7), 3, false)
		if len(more) != 3 {
			t.Fatalf("round %d: a guest got %d entries of 3 while others flood", round, len(more))
		}
		quiet = append(quiet, more...)
		uplink = append(uplink, fill(t, table, r, 1, 100, false)...)
		table.graves.release()
	}
	if want := 10000 + 20*100; len(uplink) != want {
		t.Errorf("the uplink got %d entries of %d", len(uplink), want)
	}
	if len(table.index) != FDBCapacity {
		t.Errorf("%d entries are in the table, want it full", len(table.index))
	}
}

// One that floods alone has whatever room there is, until others want it.
func TestRoomIsTakenBack(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	table := sharedTable(2)
	greedy := fill(t, table, r, 2, FDBCapacity+1000, false)
	if len(greedy) != FDBCapacity {
		t.Errorf("the only port with entries got %d, want all %d", len(greedy), FDBCapacity)
	}
	if got := len(fill(t, table, r, 1, 20000, false)); got != 20000 {
		t.Errorf("the uplink got %d entries of 20000, which are its share", got)
	}
	if got := len(fill(t, table, r, 3, 10000, false)); got != 10000 {
		t.Errorf("the other guest got %d entries of 10000, which are its share", got)
	}
	if more := fill(t, table, r, 2, 100, false); len(more) != 0 {
		t.Errorf("the greedy guest got %d more entries, of others", len(more))
	}
	// The host's own address is nobody's share.
	if err := table.set(fdbIndexKey{fdbKey(vswitch.MAC{2}, 0), 1}, fdbHost, true); err != nil {
		t.Errorf("the host's address: %v", err)
	}
}

// Of a port that gives way the learned entries go first, and of these the silent.
func TestWhichEntryGivesWay(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	table := sharedTable(2)
	static := fill(t, table, r, 2, 500, true)
	fill(t, table, r, 2, FDBCapacity-500, false)
	if got := len(fill(t, table, r, 3, 5000, false)); got != 5000 {
		t.Fatalf("the other guest got %d entries of 5000", got)
	}
	if got := alive(table, static); got != len(static) {
		t.Errorf("%d of %d static entries went before learned ones", len(static)-got, len(static))
	}
	// Few enough that all are looked at.
	few := sharedTable(1)
	keys := fill(t, few, r, 2, 6, false)
	for i, k := range keys {
		few.entry(few.index[k]).Seen = uint32(100 - i)
	}
	few.entry(few.index[keys[2]]).Seen = 0
	for _, want := range []fdbIndexKey{keys[2], keys[5], keys[4]} {
		k, ok := few.leastUsed(2)
		if !ok || k != want {
			t.Errorf("%+v gives way, want %+v", k, want)
		}
		few.remove(k)
	}
}
