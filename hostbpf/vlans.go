package hostbpf

import (
	"sync/atomic"

	"github.com/tapswitch/tapswitch/vswitch"
)

// setVLANs stores a port's VLANs, which bpf/vlan.h reads. What a VLAN's two bits say
// depends on the kind of bridge; while they are of the one kind and the port still of
// the other, they can only make frames pass.
func (t *portTable) setVLANs(slot uint32, c vswitch.PortConfig) {
	set := c.VLANs
	if set == nil {
		set = &vswitch.VLANSet{}
	}
	for i, word := range set.Of {
		atomic.StoreUint64(&t.vlans[slot].Of[i], word)
	}
	vlan := uint32(0)
	if c.VLANProtocol != 0 {
		vlan = uint32(c.VLANProtocol)<<16 | uint32(set.PVID)
	}
	atomic.StoreUint32(&t.slots[slot].Vlan, vlan)
}

// vlansOf gives a port's VLANs as they are stored.
func (t *portTable) vlansOf(slot uint32) (tpid uint16, set *vswitch.VLANSet) {
	vlan := t.slots[slot].Vlan
	stored := vswitch.VLANSet{PVID: vswitch.VLAN(vlan & 0xffff), Of: t.vlans[slot].Of}
	if stored == (vswitch.VLANSet{}) {
		return uint16(vlan >> 16), nil
	}
	return uint16(vlan >> 16), &stored
}
