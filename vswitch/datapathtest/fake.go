// Package datapathtest holds what tests of the reconciler need: a datapath in
// memory, and the contract that it and the real one both keep.
package datapathtest

import (
	"fmt"
	"iter"
	"maps"
	"os"

	"github.com/tapswitch/tapswitch/vswitch"
)

var _ vswitch.Datapath = (*Fake)(nil)

// A Fake is a datapath in memory. The zero value is empty and takes everything.
type Fake struct {
	// Refuse, if set, is asked before a port is set.
	Refuse func(vswitch.PortConfig) error
	// Capacity is the number of forwarding entries; 0 means no limit.
	Capacity int
	// Calls lists the changes in the order in which they came.
	Calls []string

	ports map[int]vswitch.PortConfig
	fdb   map[vswitch.FDBKey]int
}

// Ports implements vswitch.Datapath.
func (f *Fake) Ports() map[int]vswitch.PortConfig { return maps.Clone(f.ports) }

// SetPort implements vswitch.Datapath.
func (f *Fake) SetPort(c vswitch.PortConfig) error {
	if f.Refuse != nil {
		if err := f.Refuse(c); err != nil {
			return err
		}
	}
	if f.ports == nil {
		f.ports = map[int]vswitch.PortConfig{}
	}
	if old, ok := f.ports[c.Ifindex]; ok && (old.Bridge != c.Bridge || old.Role != c.Role) {
		delete(f.ports, c.Ifindex)
		f.forget(old)
	}
	f.ports[c.Ifindex] = c
	f.Calls = append(f.Calls, fmt.Sprintf("set port %d in=%t out=%t attach=%t", c.Ifindex, c.In, c.Out, c.Attach))
	return nil
}

// DeletePort implements vswitch.Datapath.
func (f *Fake) DeletePort(ifindex int) error {
	old, ok := f.ports[ifindex]
	if !ok {
		return nil
	}
	delete(f.ports, ifindex)
	f.forget(old)
	f.Calls = append(f.Calls, fmt.Sprintf("delete port %d", ifindex))
	return nil
}

// forget removes the entries of a port that has gone, and of its bridge if it
// was the last one there.
func (f *Fake) forget(old vswitch.PortConfig) {
	last := true
	for _, p := range f.ports {
		last = last && p.Bridge != old.Bridge
	}
	maps.DeleteFunc(f.fdb, func(k vswitch.FDBKey, port int) bool {
		return k.Bridge == old.Bridge && (last || port == old.Ifindex)
	})
}

// FDB implements vswitch.Datapath.
func (f *Fake) FDB() iter.Seq2[vswitch.FDBKey, int] { return maps.All(f.fdb) }

// SetFDB implements vswitch.Datapath.
func (f *Fake) SetFDB(key vswitch.FDBKey, port int, _ vswitch.Origin) error {
	known := false
	for ifindex, p := range f.ports {
		known = known || p.Bridge == key.Bridge && (port == vswitch.Host || port == ifindex)
	}
	if !known {
		return fmt.Errorf("adding %s to port %d: %w", key.MAC, port, os.ErrNotExist)
	}
	old, there := f.fdb[key]
	if there && old == port {
		return nil
	}
	if !there && f.Capacity > 0 && len(f.fdb) >= f.Capacity {
		return vswitch.ErrFull
	}
	if f.fdb == nil {
		f.fdb = map[vswitch.FDBKey]int{}
	}
	f.fdb[key] = port
	f.Calls = append(f.Calls, fmt.Sprintf("set %s to %d", key.MAC, port))
	return nil
}

// DeleteFDB implements vswitch.Datapath.
func (f *Fake) DeleteFDB(key vswitch.FDBKey) error {
	if _, ok := f.fdb[key]; ok {
		delete(f.fdb, key)
		f.Calls = append(f.Calls, fmt.Sprintf("delete %s", key.MAC))
	}
	return nil
}
