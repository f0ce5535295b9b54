package hostbpf

import (
	"slices"
	"sync/atomic"

	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	portSlots = uint32(hooksTableSizesPORT_SLOTS)

	// PortCapacity is how many ports the datapath takes.
	PortCapacity = int(portSlots) - 1
)

// A portTable writes the datapath's port slots and their index by ifindex,
// which bpf/ports.h reads. A slot's ifindex and bridge never change while it is
// in use, and it is used again only after a grace period.
type portTable struct {
	slots   []hooksPort
	vlans   []hooksPortVlans // by slot
	filters []hooksPortFilter
	index   portIndex
	// carried are what frames of a slot are known by besides its own device.
	carried map[uint32][]indexKey
	graves  *graveyard
	free    []uint32
	// nextBridge is the number that the next new bridge gets. Numbers are not
	// used again before all 65,535 have been.
	nextBridge uint32
	bridges    map[uint32]*bridgeRef // by number
}

// A bridgeRef is a bridge that has ports in the table.
type bridgeRef struct{ ifindex, ports int }

// newPortTable takes over the slots in use.
func newPortTable(slots []hooksPort, vlans []hooksPortVlans, filters []hooksPortFilter, index []uint64, graves *graveyard) *portTable {
	t := &portTable{
		slots: slots, vlans: vlans, filters: filters, index: portIndex{index, map[uint32]int{}}, carried: map[uint32][]indexKey{},
		graves: graves, nextBridge: 1, bridges: map[uint32]*bridgeRef{},
	}
	indexed := func(slot uint32) bool {
		return slot != 0 && slot < uint32(len(slots)) && slots[slot].Ifindex != 0 &&
			t.index.slot(deviceKey(slots[slot].Ifindex)) == slot
	}
	t.index.adopt(func(k indexKey, slot uint32) bool {
		if !indexed(slot) {
			return false
		}
		if k != deviceKey(slots[slot].Ifindex) {
			t.carried[slot] = append(t.carried[slot], k)
		}
		return true
	})
	for slot := uint32(len(slots)) - 1; slot > 0; slot-- {
		p := &slots[slot]
		if !indexed(slot) {
			// Its writer ended in the midst of adding or removing it. The VLANs of a
			// free slot are not so much as looked at, which would take up memory.
			if *p != (hooksPort{}) {
				vlans[slot], filters[slot], *p = hooksPortVlans{}, hooksPortFilter{}, hooksPort{}
			}
			t.free = append(t.free, slot)
			continue
		}
		if t.bridges[p.Bridge] == nil {
			t.bridges[p.Bridge] = &bridgeRef{ifindex: int(p.BridgeIfindex)}
		}
		t.bridges[p.Bridge].ports++
		t.nextBridge = max(t.nextBridge, p.Bridge+1)
	}
	return t
}

// bridge gives the number of a bridge, or 0 if no port is on it.
func (t *portTable) bridge(ifindex int) uint32 {
	for number, b := range t.bridges {
		if b.ifindex == ifindex {
			return number
		}
	}
	return 0
}

func (t *portTable) newBridge(ifindex int) (uint32, error) {
	for range 0xffff {
		number := t.nextBridge
		if t.nextBridge++; t.nextBridge > 0xffff {
			t.nextBridge = 1
		}
		if _, used := t.bridges[number]; !used {
			t.bridges[number] = &bridgeRef{ifindex: ifindex}
			return number, nil
		}
	}
	return 0, &vswitch.HeldError{Reason: vswitch.Hold(vswitch.HoldCapacity, "all 65535 bridge numbers are in use")}
}

// add puts a port into a free slot, closed in both directions.
func (t *portTable) add(c vswitch.PortConfig) (slot uint32, err error) {
	own := deviceKey(uint32(c.Ifindex))
	if _, room, _ := t.index.find(own); len(t.free) == 0 || !room {
		return 0, &vswitch.HeldError{Reason: vswitch.Hold(vswitch.HoldCapacity,
			"the datapath has no room for another port: it takes %d; move guests to another host", PortCapacity)}
	}
	number := t.bridge(c.Bridge)
	if number == 0 {
		if number, err = t.newBridge(c.Bridge); err != nil {
			return 0, err
		}
	}
	t.bridges[number].ports++
	slot = t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	t.slots[slot] = hooksPort{
		Ifindex: uint32(c.Ifindex), BridgeIfindex: uint32(c.Bridge), Bridge: number, Role: uint32(c.Role),
	}
	t.index.put(own, slot)
	return slot, nil
}

// carry makes the frames that XDP meets elsewhere the port's. If there is no room for
// one more device or VLAN, all is as it was.
func (t *portTable) carry(slot uint32, c vswitch.Carrier) error {
	had, want := t.carried[slot], keysOf(c)
	for i, k := range want {
		if t.index.put(k, slot) {
			continue
		}
		for _, k := range want[:i] {
			if !slices.Contains(had, k) {
				t.index.remove(k, slot)
			}
		}
		return noXDP("the datapath has no room for the frames that %s carries", deviceName(int(k.ifindex())))
	}
	for _, k := range had {
		if !slices.Contains(want, k) {
			t.index.remove(k, slot)
		}
	}
	t.carried[slot] = want
	return nil
}

// set opens and closes a port's directions.
func (t *portTable) set(slot uint32, c vswitch.PortConfig) {
	var flags hooksPortFlags
	if c.In {
		flags |= hooksPortFlagsPORT_IN
	}
	if c.Out {
		flags |= hooksPortFlagsPORT_OUT
	}
	if c.Unmerged {
		flags |= hooksPortFlagsPORT_UNMERGED
	}
	if c.Isolated {
		flags |= hooksPortFlagsPORT_ISOLATED
	}
	if c.Queued {
		flags |= hooksPortFlagsPORT_QUEUED
	}
	if c.Filter != (vswitch.Filter{}) {
		flags |= hooksPortFlagsPORT_FILTERED
	}
	p := &t.slots[slot]
	p.Carrier = 0
	if c.XDP {
		p.Carrier = uint32(c.XDPDevice())
	}
	t.setVLANs(slot, c)
	t.setFilter(slot, c.Filter)
	// A shorter limit comes into force before the port opens, a longer one never
	// early: the flags are stored between.
	if uint32(c.MaxFrame) < p.MaxFrame {
		atomic.StoreUint32(&p.MaxFrame, uint32(c.MaxFrame))
	}
	atomic.StoreUint32((*uint32)(&p.Flags), uint32(flags))
	atomic.StoreUint32(&p.MaxFrame, uint32(c.MaxFrame))
}

// remove takes a port out. Its slot is used again after a grace period.
func (t *portTable) remove(slot uint32) {
	p := &t.slots[slot]
	atomic.StoreUint32((*uint32)(&p.Flags), 0)
	for _, k := range append(t.carried[slot], deviceKey(p.Ifindex)) {
		t.index.remove(k, slot)
	}
	delete(t.carried, slot)
	if b := t.bridges[p.Bridge]; b.ports > 1 {
		b.ports--
	} else {
		delete(t.bridges, p.Bridge)
	}
	t.graves.bury(func() {
		t.vlans[slot], t.filters[slot], t.slots[slot] = hooksPortVlans{}, hooksPortFilter{}, hooksPort{}
		t.free = append(t.free, slot)
	})
}

// config gives a port's configuration, but for Attach, which the hooks tell.
func (t *portTable) config(slot uint32) vswitch.PortConfig {
	p := &t.slots[slot]
	tpid, vlans := t.vlansOf(slot)
	c := vswitch.PortConfig{
		Ifindex: int(p.Ifindex), Bridge: int(p.BridgeIfindex), Role: vswitch.Role(p.Role),
		In: p.Flags&hooksPortFlagsPORT_IN != 0, Out: p.Flags&hooksPortFlagsPORT_OUT != 0,
		VLANProtocol: tpid, VLANs: vlans, Unmerged: p.Flags&hooksPortFlagsPORT_UNMERGED != 0,
		Isolated: p.Flags&hooksPortFlagsPORT_ISOLATED != 0, Queued: p.Flags&hooksPortFlagsPORT_QUEUED != 0,
		MaxFrame: int(p.MaxFrame), Carrier: t.carrier(slot),
	}
	if p.Flags&hooksPortFlagsPORT_FILTERED != 0 {
		c.Filter = t.filter(slot)
	}
	return c
}

func (t *portTable) carrier(slot uint32) (c vswitch.Carrier) {
	if len(t.carried[slot]) == 0 && t.slots[slot].Carrier == t.slots[slot].Ifindex {
		return c
	}
	c.Ifindex = int(t.slots[slot].Carrier)
	keys := slices.Sorted(slices.Values(t.carried[slot]))
	for i, k := range keys[:min(len(keys), len(c.Members))] {
		c.Members[i] = int(k.ifindex())
		c.TPID, c.VLAN = k.tag()
	}
	return c
}
