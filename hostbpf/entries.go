package hostbpf

import (
	"fmt"
	"iter"
	"os"
	"sync/atomic"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
)

// FDB implements vswitch.Datapath.
func (d *Datapath) FDB() iter.Seq2[vswitch.FDBKey, int] {
	return func(yield func(vswitch.FDBKey, int) bool) {
		for k, e := range d.fdb.all() {
			port := vswitch.Host
			if slot := e.Dest & 0xffff; slot != fdbHost {
				port = int(d.ports.slots[slot].Ifindex)
			}
			if !yield(d.publicKey(k), port) {
				return
			}
		}
	}
}

func (d *Datapath) publicKey(k fdbIndexKey) vswitch.FDBKey {
	mac, vlan := splitKey(k.key)
	return vswitch.FDBKey{Bridge: d.ports.bridges[uint32(k.bridge)].ifindex, VLAN: vlan, MAC: mac}
}

func (d *Datapath) indexKey(key vswitch.FDBKey) fdbIndexKey {
	return fdbIndexKey{fdbKey(key.MAC, key.VLAN), uint16(d.ports.bridge(key.Bridge))}
}

// SetFDB implements vswitch.Datapath.
func (d *Datapath) SetFDB(key vswitch.FDBKey, port int, origin vswitch.Origin) error {
	k, slot := d.indexKey(key), fdbHost
	if port != vswitch.Host {
		s, ok := d.held[port]
		if !ok || s.config.Bridge != key.Bridge {
			return fmt.Errorf("adding %s on bridge %d: port %d is not on it: %w", key.MAC, key.Bridge, port, os.ErrNotExist)
		}
		slot = s.slot
	}
	if k.bridge == 0 {
		return fmt.Errorf("adding %s: bridge %d has no port: %w", key.MAC, key.Bridge, os.ErrNotExist)
	}
	return d.fdb.set(k, slot, origin != vswitch.OriginLearned)
}

// DeleteFDB implements vswitch.Datapath.
func (d *Datapath) DeleteFDB(key vswitch.FDBKey) error {
	d.fdb.remove(d.indexKey(key))
	return nil
}

// FDBLen gives the number of forwarding entries.
func (d *Datapath) FDBLen() int { return len(d.fdb.index) }

// Seen tells how long ago the fast path last saw a frame from an address; ok is
// false if it never did. It is right to half a second.
func (d *Datapath) Seen(key vswitch.FDBKey) (ago time.Duration, ok bool) {
	place, ok := d.fdb.index[d.indexKey(key)]
	if !ok {
		return 0, false
	}
	return d.lease.age(atomic.LoadUint32(&d.fdb.entry(place).Seen))
}

// Active gives the addresses of which the fast path saw a frame within the
// given time.
func (d *Datapath) Active(within time.Duration) iter.Seq[vswitch.FDBKey] {
	return func(yield func(vswitch.FDBKey) bool) {
		for k, e := range d.fdb.all() {
			ago, ok := d.lease.age(atomic.LoadUint32(&e.Seen))
			if ok && ago <= within && !yield(d.publicKey(k)) {
				return
			}
		}
	}
}
