package hostbpf

import (
	"sync/atomic"
	"time"
)

// A Choice says which TCP flows take the tc hook of their uplink, where GRO has
// merged them.
type Choice struct {
	// BulkFrame is the length in bytes, from the destination address on, from
	// which on a TCP frame makes its flow bulk; 0: none does.
	BulkFrame int
	// BulkIdle is how long a bulk flow sends none until it goes back to XDP.
	BulkIdle time.Duration
}

// The defaults of a Choice. Nothing that asks or answers in less than a segment
// is bulk, and no stream pauses for so long within a burst.
const (
	DefaultBulkFrame = 1024
	DefaultBulkIdle  = 250 * time.Millisecond
)

// Choose sets which TCP flows are bulk.
func (d *Datapath) Choose(c Choice) {
	atomic.StoreUint32(&d.lease.control.BulkIdle, uint32(d.lease.jiffies(c.BulkIdle)))
	atomic.StoreUint32(&d.lease.control.BulkLen, uint32(c.BulkFrame))
}

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
