package hostbpf

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/tapswitch/tapswitch/vswitch"
)

const filterOut = uint32(hooksTableSizesFILTER_OUT)

// setFilter stores a port's filter, which bpf/filter.h reads. While it changes, no kind
// of frame is let through.
func (t *portTable) setFilter(slot uint32, f vswitch.Filter) {
	p := &t.filters[slot]
	if f == (vswitch.Filter{}) || f == t.filter(slot) {
		return
	}
	atomic.StoreUint32(&p.Kinds, 0)
	var source uint64
	if f.Source != (vswitch.MAC{}) {
		source = fdbKey(f.Source, 0) & (1<<48 - 1)
	}
	atomic.StoreUint64(&p.Source, source)
	atomic.StoreUint32(&p.Sources, uint32(f.Sources))
	for i := range p.Ipv4 {
		addr := f.IPv4[0]
		if i < f.Sources {
			addr = f.IPv4[i]
		}
		atomic.StoreUint32(&p.Ipv4[i], binary.NativeEndian.Uint32(addr[:]))
	}
	atomic.StoreUint32(&p.Kinds, uint32(f.In)|uint32(f.Out)<<filterOut)
}

// filter gives a port's filter as it is stored.
func (t *portTable) filter(slot uint32) (f vswitch.Filter) {
	p := t.filters[slot]
	f = vswitch.Filter{In: vswitch.FrameKinds(p.Kinds), Out: vswitch.FrameKinds(p.Kinds >> filterOut), Sources: min(int(p.Sources), len(f.IPv4))}
	f.Source, _ = splitKey(p.Source)
	for i, addr := range p.Ipv4[:f.Sources] {
		binary.NativeEndian.PutUint32(f.IPv4[i][:], addr)
	}
	return f
}
