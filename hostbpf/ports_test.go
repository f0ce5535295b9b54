package hostbpf

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/tapswitch/tapswitch/vswitch"
)

func slotOf(t *portTable, ifindex uint32) uint32 { return t.index.slot(deviceKey(ifindex)) }

func newPorts() *portTable {
	return newPortTable(make([]hooksPort, portSlots), make([]hooksPortVlans, portSlots), make([]hooksPortFilter, portSlots), make([]uint64, portIndexSize), &graveyard{})
}

func TestPortTableAgainstMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	table := newPorts()
	held := map[uint32]uint32{} // ifindex → slot
	next := uint32(1)
	for range 20000 {
		if r.IntN(2) == 0 {
			next += uint32(r.IntN(5000)) + 1 // numbers grow for ever, and wrap around the index
			slot, err := table.add(vswitch.PortConfig{Ifindex: int(next), Bridge: 1 + r.IntN(40)})
			if err != nil {
				var h *vswitch.HeldError
				if !errors.As(err, &h) || h.Reason.Code != vswitch.HoldCapacity {
					t.Fatal(err)
				}
				continue
			}
			held[next] = slot
		} else {
			for ifindex, slot := range held {
				table.remove(slot)
				delete(held, ifindex)
				break
			}
		}
		if r.IntN(50) == 0 {
			table.graves.release()
		}
	}
	seen := map[uint32]bool{}
	for ifindex, slot := range held {
		if got := slotOf(table, ifindex); got != slot || seen[slot] {
			t.Errorf("ifindex %d is found in slot %d, want %d of its own", ifindex, got, slot)
		}
		seen[slot] = true
	}
	ports := 0
	for number, b := range table.bridges {
		ports += b.ports
		if table.bridge(b.ifindex) != number {
			t.Errorf("bridge %d has two numbers", b.ifindex)
		}
	}
	if ports != len(held) {
		t.Errorf("bridges count %d ports, want %d", ports, len(held))
	}
	adopted := newPortTable(table.slots, table.vlans, table.filters, table.index.entries, &graveyard{})
	if got := PortCapacity - len(adopted.free); got != len(held) {
		t.Errorf("adopted %d ports, want %d", got, len(held))
	}
	for ifindex, slot := range held {
		if slotOf(adopted, ifindex) != slot {
			t.Errorf("ifindex %d was not adopted", ifindex)
		}
	}
}

func TestPortTableCapacity(t *testing.T) {
	table := newPorts()
	for i := range PortCapacity {
		if _, err := table.add(vswitch.PortConfig{Ifindex: i + 1, Bridge: i + 1}); err != nil {
			t.Fatalf("port %d: %v", i, err)
		}
	}
	var h *vswitch.HeldError
	if _, err := table.add(vswitch.PortConfig{Ifindex: 99999, Bridge: 1}); !errors.As(err, &h) {
		t.Errorf("one more than the capacity: got %v, want a reason to hold it back", err)
	}
	// Devices whose numbers share a remainder: the index has room for a few.
	table = newPorts()
	for i := range portIndexTries + 1 {
		_, err := table.add(vswitch.PortConfig{Ifindex: int(7 + i*portIndexSize), Bridge: 1})
		if (err != nil) != (i == portIndexTries) {
			t.Errorf("device %d of the same remainder: got %v", i, err)
		}
	}
}
