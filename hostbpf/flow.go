package hostbpf

import "sync/atomic"

// BulkFlows counts the TCP flows that take the tc hook of their uplink because
// they are bulk: those that have sent a long segment lately. Flows that share a
// place in the table count as one.
func (d *Datapath) BulkFlows() (n int) {
	now := d.lease.now()
	idle := int32(atomic.LoadUint32(&d.lease.control.BulkIdle))
	for i := range d.flows {
		if f := atomic.LoadUint64(&d.flows[i]); f != 0 && int32(now-uint32(f)) < idle {
			n++
		}
	}
	return n
}
