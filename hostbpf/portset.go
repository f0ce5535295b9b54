package hostbpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A portState is what the datapath holds for a port.
type portState struct {
	slot   uint32
	hooks  hooks // nil: not attached
	config vswitch.PortConfig
}

func (d *Datapath) adoptPorts() error {
	attached, err := d.adoptHooks()
	xdp := map[int]hook{}
	for ifindex, h := range attached {
		if h[vswitch.HookXDP] != nil {
			xdp[ifindex], h[vswitch.HookXDP] = h[vswitch.HookXDP], nil
			attached[ifindex] = h
		}
	}
	for i := range d.ports.slots {
		slot := uint32(i)
		c := d.ports.config(slot)
		if c.Ifindex == 0 {
			continue
		}
		h := attached[c.Ifindex]
		delete(attached, c.Ifindex)
		h[vswitch.HookXDP] = d.adoptXDP(xdp, int(d.ports.slots[slot].Carrier))
		c.Attach, c.XDP = h[vswitch.HookTC] != nil, h[vswitch.HookXDP] != nil
		d.held[c.Ifindex] = &portState{slot: slot, hooks: h, config: c}
	}
	// The process before may have ended between a port's removal and its entries'.
	d.fdb.removeIf(func(k fdbIndexKey, slot uint32) bool {
		return d.ports.bridges[uint32(k.bridge)] == nil ||
			slot != fdbHost && (slot >= portSlots || d.ports.slots[slot].Bridge != uint32(k.bridge))
	})
	d.fdb.shares.setPorts(d.ports.slots)
	// Attached, but its port never got into the table.
	for _, h := range attached {
		err = errors.Join(err, h.detach())
	}
	for ifindex, h := range xdp {
		if d.shared[ifindex] == nil {
			err = errors.Join(err, h.detach())
		}
	}
	d.closes = append(d.closes, func() {
		for _, s := range d.held {
			s.hooks.close()
		}
	})
	return err
}

// adoptXDP gives a port the XDP program of a device, of those that are attached.
func (d *Datapath) adoptXDP(attached map[int]hook, device int) hook {
	switch {
	case attached[device] == nil:
		return nil
	case d.shared[device] == nil:
		return d.share(device, attached[device], 1)
	}
	d.shared[device].ports++
	return d.shared[device]
}

// Ports implements vswitch.Datapath.
func (d *Datapath) Ports() map[int]vswitch.PortConfig {
	ports := make(map[int]vswitch.PortConfig, len(d.held))
	for ifindex, s := range d.held {
		ports[ifindex] = s.config
	}
	return ports
}

// Hooks says how the port's hooks are attached ("xdp native", "tcx", "clsact"),
// in the order in which frames meet them.
func (d *Datapath) Hooks(ifindex int) (kinds []string) {
	s, ok := d.held[ifindex]
	if !ok {
		return nil
	}
	for _, at := range []vswitch.Hook{vswitch.HookXDP, vswitch.HookTC} {
		if s.hooks[at] != nil {
			kinds = append(kinds, s.hooks[at].kind())
		}
	}
	return kinds
}

// SetPort implements vswitch.Datapath.
func (d *Datapath) SetPort(c vswitch.PortConfig) error {
	old := d.held[c.Ifindex]
	if old != nil && (old.config.Role != c.Role || old.config.XDP && c.XDP && old.config.XDPDevice() != c.XDPDevice()) {
		// Other programs, or elsewhere: nothing of the old port fits.
		if err := d.DeletePort(c.Ifindex); err != nil {
			return err
		}
		old = nil
	}
	s := &portState{config: c}
	if old != nil {
		*s = portState{slot: old.slot, hooks: old.hooks, config: c}
	}
	fresh, err := d.attachWanted(s)
	if err == nil && (old == nil || old.config.Bridge != c.Bridge) {
		s.slot, err = d.newSlot(c)
	}
	if err == nil {
		if err = d.ports.carry(s.slot, c.Carrier); err != nil && (old == nil || old.slot != s.slot) {
			d.freeSlot(s.slot)
		}
	}
	if err != nil {
		err = errors.Join(err, fresh.detach())
		if !deviceThere(c.Ifindex) { // the kernel has a different errno for that in each place
			err = fmt.Errorf("setting port %d, whose device has gone meanwhile (%v): %w", c.Ifindex, err, os.ErrNotExist) //nolint:errorlint // for people
		}
		return err
	}
	if old != nil && old.slot != s.slot {
		d.freeSlot(old.slot) // moved to another bridge: the hooks stay
	}
	d.ports.set(s.slot, c)
	d.held[c.Ifindex] = s
	return s.detachUnwanted()
}

// wants says which hooks a port is to have.
func wants(c vswitch.PortConfig) [vswitch.NumHooks]bool {
	return [vswitch.NumHooks]bool{vswitch.HookTC: c.Attach, vswitch.HookXDP: c.XDP}
}

// attachWanted attaches what the port does not have yet, and gives what it has
// attached.
func (d *Datapath) attachWanted(s *portState) (fresh hooks, err error) {
	for at, wanted := range wants(s.config) {
		if !wanted || s.hooks[at] != nil {
			continue
		}
		if fresh[at], err = d.attach(s.config, vswitch.Hook(at)); err != nil {
			fresh[at] = nil
			return fresh, err
		}
		s.hooks[at] = fresh[at]
	}
	return fresh, nil
}

func (s *portState) detachUnwanted() (err error) {
	for at, wanted := range wants(s.config) {
		if !wanted && s.hooks[at] != nil {
			err = errors.Join(err, s.hooks[at].detach())
			s.hooks[at] = nil
		}
	}
	return err
}

// newSlot gives a port a slot of its own, closed and with its counters at zero.
func (d *Datapath) newSlot(c vswitch.PortConfig) (slot uint32, err error) {
	if slot, err = d.ports.add(c); err != nil {
		return 0, err
	}
	d.fdb.shares.setPorts(d.ports.slots)
	err = d.clearCounters(slot)
	if err == nil && c.Role == vswitch.RoleGuest {
		err = d.allowXDP(c.Ifindex)
	}
	if err != nil {
		d.freeSlot(slot)
	}
	return slot, err
}

// allowXDP makes a device a target of XDP redirects. Only taps are: whether a
// NIC takes frames by ndo_xdp_xmit depends on its driver and its queues.
func (d *Datapath) allowXDP(ifindex int) error {
	if err := d.maps.TxPorts.Put(uint32(ifindex), uint32(ifindex)); err != nil {
		return fmt.Errorf("adding %s to tx_ports: %w", deviceName(ifindex), err)
	}
	return nil
}

// DeletePort implements vswitch.Datapath.
func (d *Datapath) DeletePort(ifindex int) (err error) {
	s, ok := d.held[ifindex]
	if !ok {
		return nil
	}
	delete(d.held, ifindex)
	delete(d.met, ifindex)
	d.freeSlot(s.slot)
	if err := d.maps.TxPorts.Delete(uint32(ifindex)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing port %d from tx_ports: %w", ifindex, err)
	}
	if err := s.hooks.detach(); err != nil {
		return fmt.Errorf("detaching port %d: %w", ifindex, err)
	}
	return d.forgetLosses(ifindex)
}

// freeSlot takes a slot's port and all that leads to it out of the tables.
func (d *Datapath) freeSlot(slot uint32) {
	bridge := d.ports.slots[slot].Bridge
	d.ports.remove(slot)
	_, inUse := d.ports.bridges[bridge]
	d.fdb.removeIf(func(k fdbIndexKey, dest uint32) bool {
		return uint32(k.bridge) == bridge && (!inUse || dest == slot)
	})
	d.fdb.shares.setPorts(d.ports.slots)
}
