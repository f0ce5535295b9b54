package hostbpf

import (
	"sync/atomic"

	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	portIndexSize   = uint32(hooksTableSizesPORT_INDEX_SIZE)
	portIndexTries  = uint32(hooksTableSizesPORT_INDEX_PROBES)
	portIndexStride = uint32(hooksTableSizesPORT_INDEX_STRIDE)

	indexCarrier = uint64(hooksPortIndexBitsPORT_CARRIER)
	indexSlot    = 0xffff &^ indexCarrier
	indexVLAN    = indexKey(hooksPortIndexBitsPORT_VLAN)
	indexVLANAD  = indexKey(hooksPortIndexBitsPORT_VLAN_AD)

	tpidQ  = 0x8100
	tpidAD = 0x88a8
)

// An indexKey is what an entry of the port index is about: frames of a device, or of
// one of its VLANs.
type indexKey uint64

func deviceKey(ifindex uint32) indexKey { return indexKey(ifindex) << 16 }

func vlanKey(ifindex uint32, tpid uint16, v vswitch.VLAN) indexKey {
	k := deviceKey(ifindex) | indexVLAN | indexKey(v)
	if tpid == tpidAD {
		k |= indexVLANAD
	}
	return k
}

func (k indexKey) ifindex() uint32 { return uint32(k >> 16) }

// tag gives the VLAN that the key is about; a TPID of 0 if it is about none.
func (k indexKey) tag() (tpid uint16, v vswitch.VLAN) {
	switch {
	case k&indexVLAN == 0:
		return 0, 0
	case k&indexVLANAD != 0:
		return tpidAD, vswitch.VLAN(k % vswitch.VLANs)
	}
	return tpidQ, vswitch.VLAN(k % vswitch.VLANs)
}

// keysOf gives what a port's frames are known by besides its own device.
func keysOf(c vswitch.Carrier) (keys []indexKey) {
	for _, member := range c.Members {
		switch {
		case member == 0:
		case c.TPID != 0:
			keys = append(keys, vlanKey(uint32(member), c.TPID, c.VLAN))
		default:
			keys = append(keys, deviceKey(uint32(member)))
		}
	}
	return keys
}

// A portIndex writes the index that bpf/ports.h reads, each entry by one store.
type portIndex struct {
	entries []uint64
	vlans   map[uint32]int // number of entries about a device's VLANs, by its ifindex
}

// find gives the key's place, or where it could go; ok says whether it is there.
func (x *portIndex) find(k indexKey) (at uint32, room, ok bool) {
	for i := range portIndexTries {
		next := (k.ifindex() + uint32(k%vswitch.VLANs)*portIndexStride + i) % portIndexSize
		switch {
		case indexKey(x.entries[next]>>16) == k:
			return next, true, true
		case x.entries[next] == 0 && !room:
			at, room = next, true
		}
	}
	return at, room, false
}

// slot gives what the index has for a key; 0 if it has nothing.
func (x *portIndex) slot(k indexKey) uint32 {
	at, _, ok := x.find(k)
	if !ok {
		return 0
	}
	return uint32(x.entries[at] & indexSlot)
}

// put makes a key lead to a slot, also if it led to another, and says whether there
// was room.
func (x *portIndex) put(k indexKey, slot uint32) bool {
	at, room, had := x.find(k)
	if !room {
		return false
	}
	entry := uint64(k)<<16 | uint64(slot)
	if k&indexVLAN == 0 {
		if x.vlans[k.ifindex()] > 0 {
			entry |= indexCarrier
		}
		atomic.StoreUint64(&x.entries[at], entry)
		return true
	}
	atomic.StoreUint64(&x.entries[at], entry)
	if had {
		return true
	}
	x.vlans[k.ifindex()]++
	if device := deviceKey(k.ifindex()); !x.put(device, x.slot(device)) {
		x.remove(k, slot)
		return false
	}
	return true
}

// remove takes a key out, unless it leads to another slot by now.
func (x *portIndex) remove(k indexKey, slot uint32) {
	at, _, ok := x.find(k)
	if !ok || uint32(x.entries[at]&indexSlot) != slot {
		return
	}
	device := deviceKey(k.ifindex())
	if k != device {
		atomic.StoreUint64(&x.entries[at], 0)
		if x.vlans[k.ifindex()]--; x.vlans[k.ifindex()] > 0 {
			return
		}
		delete(x.vlans, k.ifindex())
		if at, _, ok = x.find(device); !ok {
			return
		}
		slot = x.slot(device)
	} else {
		slot = 0
	}
	switch {
	case x.vlans[k.ifindex()] > 0:
		atomic.StoreUint64(&x.entries[at], uint64(device)<<16|indexCarrier)
	case slot == 0:
		atomic.StoreUint64(&x.entries[at], 0)
	default:
		atomic.StoreUint64(&x.entries[at], uint64(device)<<16|uint64(slot))
	}
}

// adopt takes over the entries whose slot is wanted, and removes all others.
func (x *portIndex) adopt(wanted func(k indexKey, slot uint32) bool) {
	for i := range x.entries {
		entry := x.entries[i]
		if k := indexKey(entry >> 16); k&indexVLAN != 0 {
			if wanted(k, uint32(entry&indexSlot)) {
				x.vlans[k.ifindex()]++
			} else {
				atomic.StoreUint64(&x.entries[i], 0)
			}
		}
	}
	for i := range x.entries {
		entry := x.entries[i]
		k, slot := indexKey(entry>>16), uint32(entry&indexSlot)
		if entry == 0 || k&indexVLAN != 0 {
			continue
		}
		if slot == 0 || !wanted(k, slot) {
			slot = 0
		}
		kept := uint64(k)<<16 | uint64(slot)
		switch {
		case x.vlans[k.ifindex()] > 0:
			kept |= indexCarrier
		case slot == 0:
			kept = 0
		}
		atomic.StoreUint64(&x.entries[i], kept)
	}
}
