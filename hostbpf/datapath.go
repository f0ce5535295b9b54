package hostbpf

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/tapswitch/tapswitch/vswitch"
	"golang.org/x/sys/unix"
)

var _ vswitch.Datapath = (*Datapath)(nil)

// Options say where a datapath is to be. The zero value is the host's own.
type Options struct {
	PinDir string // in a BPF file system; DefaultPinDir if empty
}

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

// A Datapath is the BPF datapath of the network namespace in which it was
// opened. Its methods are called by one goroutine.
type Datapath struct {
	pins     *pinDir
	adopted  bool
	maps     *hooksMaps
	programs *hooksPrograms
	lossCounters

	lease  lease
	ports  *portTable
	flows  []uint64
	fdb    *fdbTable
	graves *graveyard
	held   map[int]*portState // by ifindex
	closes []func()
}

// A portState is what the datapath holds for a port.
type portState struct {
	slot   uint32
	hooks  hooks // nil: not attached
	config vswitch.PortConfig
}

// Open loads the datapath. If one is pinned it is adopted: its ports, entries,
// counters and attachments stay in force, and its programs are swapped for this
// process's without a gap. It does not act beyond its old deadline before Renew
// is called.
func Open(o Options) (_ *Datapath, err error) {
	if o.PinDir == "" {
		o.PinDir = DefaultPinDir
	}
	if err := checkKernel(); err != nil {
		return nil, err
	}
	d := &Datapath{held: map[int]*portState{}}
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	if d.pins, err = openPins(filepath.Clean(o.PinDir)); err != nil {
		return nil, err
	}
	d.closes = append(d.closes, func() { d.pins.close() })
	d.adopted = d.pins.exists()
	if d.maps, d.programs, err = load(d.pins); err != nil {
		return nil, err
	}
	d.closes = append(d.closes, func() { d.programs.Close(); d.maps.Close() })
	if err := d.open(); err != nil {
		return nil, err
	}
	return d, nil
}

// open takes over the maps' contents and the attachments.
func (d *Datapath) open() (err error) {
	if d.graves, err = newGraveyard(); err != nil {
		return err
	}
	d.closes = append(d.closes, d.graves.close)
	control, err := mapArray[hooksSwitchControl](d.maps.Control)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, control.close)
	slots, err := mapArray[hooksPort](d.maps.Ports)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, slots.close)
	index, err := mapArray[uint64](d.maps.PortIndex)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, index.close)
	buckets, err := mapArray[hooksFdbBucket](d.maps.Fdb)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, buckets.close)
	flows, err := mapArray[uint64](d.maps.Flows)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, flows.close)
	d.flows = flows.entries
	if err := d.setControl(&control.entries[0]); err != nil {
		return err
	}
	// What the process before has removed may be looked at until now.
	if err := d.graves.wait(); err != nil {
		return err
	}
	d.ports = newPortTable(slots.entries, index.entries, d.graves)
	d.fdb = newFDBTable(buckets.entries, d.lease.control.Seed, d.graves)
	return d.adoptPorts()
}

// setControl fills in what the programs are told once.
func (d *Datapath) setControl(c *hooksSwitchControl) error {
	hz, err := jiffiesPerSecond()
	if err != nil {
		return err
	}
	d.lease = lease{control: c, program: d.programs.Renew, hz: hz, renewed: time.Now()}
	netns, err := netnsInode()
	if err != nil {
		return err
	}
	if c.Netns != 0 && c.Netns != netns {
		return fmt.Errorf("the datapath pinned at %s belongs to network namespace %d, this is %d: start tapswitchd there, or name another directory with -pins", d.pins.root, c.Netns, netns)
	}
	info, err := d.maps.TxPorts.Info()
	if err != nil {
		return fmt.Errorf("reading the id of tx_ports: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return errors.New("reading the id of tx_ports: the kernel did not tell")
	}
	if c.Seed[0] == 0 {
		c.Seed = newSeeds()
	}
	c.Netns, c.TxPortsId = netns, uint32(id)
	// Often enough for ages in seconds, seldom enough to cost nothing.
	atomic.StoreUint32(&c.SeenEvery, uint32(hz/4))
	if !d.adopted { // what the process before was told holds until this one is
		d.Choose(Choice{DefaultBulkFrame, DefaultBulkIdle})
	}
	return nil
}

// netnsInode tells this thread's network namespace from others.
func netnsInode() (uint32, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("looking at this network namespace: %w", err)
	}
	return uint32(st.Ino), nil
}

func (d *Datapath) adoptPorts() error {
	attached, err := d.adoptHooks()
	for i := range d.ports.slots {
		slot := uint32(i)
		c := d.ports.config(slot)
		if c.Ifindex == 0 {
			continue
		}
		h := attached[c.Ifindex]
		delete(attached, c.Ifindex)
		c.Attach, c.XDP = h[vswitch.HookTC] != nil, h[vswitch.HookXDP] != nil
		d.held[c.Ifindex] = &portState{slot: slot, hooks: h, config: c}
	}
	// The process before may have ended between a port's removal and its entries'.
	d.fdb.removeIf(func(k fdbIndexKey, slot uint32) bool {
		return d.ports.bridges[uint32(k.bridge)] == nil ||
			slot != fdbHost && (slot >= portSlots || d.ports.slots[slot].Bridge != uint32(k.bridge))
	})
	// Attached, but its port never got into the table.
	for _, h := range attached {
		err = errors.Join(err, h.detach())
	}
	d.closes = append(d.closes, func() {
		for _, s := range d.held {
			s.hooks.close()
		}
	})
	return err
}

// Adopted says whether the datapath was there before.
func (d *Datapath) Adopted() bool { return d.adopted }

// PinDir gives the directory that holds the pins.
func (d *Datapath) PinDir() string { return d.pins.dir() }

// Renew lets the datapath act for the given time from now on. Call it several
// times as often, and only while the datapath is kept in step with the bridge.
func (d *Datapath) Renew(lease time.Duration) error {
	return errors.Join(d.lease.renew(lease), d.graves.tick())
}

// Choose sets which TCP flows are bulk.
func (d *Datapath) Choose(c Choice) {
	atomic.StoreUint32(&d.lease.control.BulkIdle, uint32(d.lease.jiffies(c.BulkIdle)))
	atomic.StoreUint32(&d.lease.control.BulkLen, uint32(c.BulkFrame))
}

// Expire makes every frame pass from now on, until Renew.
func (d *Datapath) Expire() { d.lease.expire() }

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
	if old != nil && old.config.Role != c.Role {
		// Other programs: nothing of the old port fits.
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
	if err != nil {
		return errors.Join(err, fresh.detach())
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
}

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
func (d *Datapath) SetFDB(key vswitch.FDBKey, port int) error {
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
	return d.fdb.set(k, slot)
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

// Close ends this process's hold on the datapath. With keep it stays pinned, to
// be adopted, and stops acting when its deadline passes; otherwise every frame
// passes at once and everything that the datapath made is removed.
func (d *Datapath) Close(keep bool) (err error) {
	if !keep {
		d.lease.expire()
		for ifindex := range d.held {
			err = errors.Join(err, d.DeletePort(ifindex))
		}
		err = errors.Join(err, d.DetachLossCounters(), d.pins.remove())
	}
	d.release()
	return err
}

func (d *Datapath) release() {
	d.lossCounters.close()
	for i := len(d.closes) - 1; i >= 0; i-- {
		d.closes[i]()
	}
	d.closes = nil
}
