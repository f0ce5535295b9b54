// Package bridge mirrors the Linux bridges of a network namespace into
// vswitch's types: bridges, ports with their role and state, and forwarding
// entries. It hears of changes by rtnetlink and reads everything again after an
// overflow. It also refreshes the ages of learned entries whose frames the
// bridge does not see.
//
// It needs nothing newer than Linux 5.0.
package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// DefaultReceiveBuffer is the size of the event socket's receive buffer in
// bytes. The kernel doubles it, and charges about 768 bytes for each FDB event:
// room for some 40,000.
const DefaultReceiveBuffer = 16 << 20

// maxBatch bounds the events per batch, and with them the memory that a flood
// of new addresses can take, at about 80 bytes each.
const maxBatch = 8192

// floodPause lets events queue up while somebody floods addresses. To be woken for
// each costs several times what it takes to refuse it, of the CPUs that guests need
// too; and a change is still in force within a few milliseconds.
const floodPause = 5 * time.Millisecond

// rtextFilterSkipStats leaves statistics out of a dump (Linux 4.4).
const rtextFilterSkipStats = 1 << 3

// Options say what a Mirror should do. The zero value is the default.
type Options struct {
	// Uplinks names devices to take as uplinks although their kind says
	// otherwise, such as a veth.
	Uplinks []string
	// ReceiveBuffer is the size of the event socket's receive buffer in bytes;
	// 0 means DefaultReceiveBuffer. Without CAP_NET_ADMIN in the initial user
	// namespace the kernel limits it to net.core.rmem_max.
	ReceiveBuffer int
	// PerPort and PerUplink are how many learned entries the mirror keeps of each
	// port and of each uplink; 0 means all. Others are as unknown.
	PerPort, PerUplink int
}

// A Mirror is a copy of what the kernel's bridges know. One goroutine calls
// Receive; another, its owner, calls all else and reads the maps. Close may be
// called by any.
type Mirror struct {
	// Bridges are all bridges of the network namespace, by ifindex. The kernel
	// tells of changes to the settings of one that is down when it comes up.
	Bridges map[int]vswitch.Bridge
	// Ports are all devices enslaved to one of them, by ifindex.
	Ports map[int]vswitch.Port
	// FDB is the bridges' forwarding table. Every entry leads to one of the
	// ports of its bridge, or to the bridge itself; only that of a bridge that
	// is just being made may be there a moment before it. Updated is as of the last
	// event or dump: the kernel does not tell of each frame. Resync replaces
	// the maps.
	FDB map[vswitch.FDBKey]vswitch.FDBEntry

	// Between, if set, is called now and then while everything is read again
	// without need, and what the mirror holds is as right as ever.
	Between func()

	options Options
	gate    *gate
	epoch   uint64 // of the gate, when what the mirror holds began to be read
	links   map[int]*link
	vlans   map[int]*vswitch.VLANSet // of ports, by ifindex
	taken   map[int]*vswitch.VLANSet // those of VLAN devices, by the ifindex of the device below
	bonded  map[int][]*link          // devices of bonds, by the bond's ifindex
	entries map[int]int              // number of FDB entries, by port
	stale   bool                     // a resync is due

	events   *conn // of the goroutine that calls Receive
	buf      []byte
	flooded  bool // the last batch had events to refuse
	requests *conn

	refreshes atomic.Uint64 // how many have ended
	// pending are the ports of refreshes that may have met events under way. It
	// is empty again once the socket has been; it never has more keys than the
	// FDB had since.
	pending map[vswitch.FDBKey]int
	moved   map[vswitch.FDBKey]vswitch.FDBEntry
}

// A Batch is what one Receive has read.
type Batch struct {
	// Overflow says that the kernel had to drop events. Apply then reads
	// everything again.
	Overflow bool

	events  []event
	refused int    // events of entries that the mirror is not to hear of
	drained uint64 // refreshes that had ended when the socket was found empty
}

// An event is one message, about a link, about VLANs or about an FDB entry.
type event struct {
	link    *link
	vlans   *vlanEvent
	family  uint8 // of the link's message
	deleted bool
	beyond  bool // the entry is one that the mirror is not to keep, and as good as gone
	epoch   uint64
	entry   vswitch.FDBEntry
}

// A Change says what became different.
type Change struct {
	// Topology says that Bridges, Ports or Holds changed.
	Topology bool
	// FDB has the keys of entries that came, went, or have another port or
	// origin, each once.
	FDB []vswitch.FDBKey
	// Gone are the devices that have gone, though there may be others with their
	// ifindex by now.
	Gone []int
	// Resync says that everything was read again.
	Resync bool
}

// Open subscribes to the bridges of the calling thread's network namespace and
// reads their state. It needs no privilege; Refresh needs CAP_NET_ADMIN.
func Open(o Options) (*Mirror, error) {
	if o.ReceiveBuffer == 0 {
		o.ReceiveBuffer = DefaultReceiveBuffer
	}
	m := blank(o)
	m.gate = newGate(o.PerPort, o.PerUplink)
	m.buf = make([]byte, maxDatagram)
	var err error
	if m.events, err = dial(); err != nil {
		return nil, fmt.Errorf("opening the bridge mirror: %w", err)
	}
	if err := m.events.subscribe(o.ReceiveBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing to bridge events: %w", err), m.events.Close())
	}
	if m.requests, err = dial(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the bridge mirror: %w", err), m.events.Close())
	}
	if _, err := m.Resync(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the bridge mirror: %w", err), m.Close())
	}
	return m, nil
}

func blank(o Options) *Mirror {
	return &Mirror{
		Bridges: map[int]vswitch.Bridge{},
		Ports:   map[int]vswitch.Port{},
		FDB:     map[vswitch.FDBKey]vswitch.FDBEntry{},
		options: o,
		links:   map[int]*link{},
		vlans:   map[int]*vswitch.VLANSet{},
		taken:   map[int]*vswitch.VLANSet{},
		entries: map[int]int{},
	}
}

// subscribe makes the socket hear of links and FDB entries; one socket for both
// keeps the order of their events. First it sizes the receive buffer, and has
// the host's ARP traffic and the tables of tunnels filtered out before they take
// room in it.
func (c *conn) subscribe(size int) error {
	if err := c.SetReadBuffer(size); err != nil {
		return fmt.Errorf("setting the receive buffer to %d bytes: %w", size, err)
	}
	// Classic BPF loads numbers in network byte order.
	wire := func(typ uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(native.AppendUint16(nil, typ)))
	}
	const (
		typ    = 4
		family = unix.SizeofNlMsghdr
		flags  = unix.SizeofNlMsghdr + 10
	)
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: typ, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: wire(unix.RTM_NEWNEIGH), SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: wire(unix.RTM_DELNEIGH), SkipFalse: 4},
		bpf.LoadAbsolute{Off: family, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_BRIDGE, SkipFalse: 3},
		bpf.LoadAbsolute{Off: flags, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.NTF_SELF, SkipTrue: 1},
		bpf.RetConstant{Val: math.MaxUint32},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return fmt.Errorf("making the filter of events: %w", err)
	}
	if err := c.SetBPF(filter); err != nil {
		return fmt.Errorf("filtering events: %w", err)
	}
	for _, group := range []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_BRVLAN} {
		if err := c.JoinGroup(group); err != nil && group != unix.RTNLGRP_BRVLAN { // since Linux 5.6
			return fmt.Errorf("joining group %d: %w", group, err)
		}
	}
	return nil
}

// Close ends the mirror. A blocked Receive returns os.ErrClosed.
func (m *Mirror) Close() error {
	return errors.Join(m.events.Close(), m.requests.Close())
}

// Receive waits for events and reads those that are queued, up to some
// thousand. A batch may be empty. It returns os.ErrClosed after Close. Any other error is the
// socket's; open a new Mirror then.
func (m *Mirror) Receive() (Batch, error) {
	var (
		batch     Batch
		discarded int
	)
	// No event takes less than 256 bytes, so the queue has been empty after so
	// many, also if new ones come faster than they can be read.
	enough := 2*m.options.ReceiveBuffer/256 + maxBatch
	if m.flooded {
		time.Sleep(floodPause)
	}
	defer func() { m.flooded = batch.refused > 0 }()
	for reads := 0; reads < maxBatch && discarded <= enough; reads++ {
		// Before the read, so that an empty socket covers all of them.
		mark := m.refreshes.Load()
		n, err := m.events.read(m.buf, reads == 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			batch.drained = mark
			return batch, nil
		case errors.Is(err, unix.ENOBUFS):
			// The kernel queues nothing more, and does not say so again, until
			// the queue has been empty: read on, whatever it is.
			batch.Overflow, batch.events = true, nil
			reads = 0
		case err != nil:
			return batch, fmt.Errorf("receiving bridge events: %w", err)
		case batch.Overflow:
			discarded++
			reads = 0
		default:
			batch.read(m.buf[:n], time.Now(), m.gate)
		}
	}
	return batch, nil
}

// Empty says that there is nothing to apply.
func (batch *Batch) Empty() bool { return len(batch.events) == 0 && !batch.Overflow }

// Append makes one batch of two, and says whether it did: it leaves alone what
// would become too large. The later one is read after this one.
func (batch *Batch) Append(later Batch) bool {
	if len(batch.events)+len(later.events) > maxBatch && !later.Overflow {
		return false
	}
	if later.Overflow {
		batch.events = nil
	}
	batch.Overflow = batch.Overflow || later.Overflow
	batch.drained = later.drained
	if batch.Overflow {
		return true // everything will be read again
	}
	batch.events = append(batch.events, later.events...)
	return true
}

// read takes over the messages of a datagram.
func (batch *Batch) read(b []byte, now time.Time, g *gate) {
	for len(b) > 0 {
		var msg netlink.Message
		if err := msg.UnmarshalBinary(b); err != nil {
			batch.Overflow, batch.events = true, nil
			return
		}
		switch typ := msg.Header.Type; typ {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if family, l, ok := parseLink(msg.Data); ok && (family == unix.AF_UNSPEC || family == unix.AF_BRIDGE) {
				batch.events = append(batch.events, event{link: l, family: family, deleted: typ == unix.RTM_DELLINK})
			}
		case unix.RTM_NEWVLAN, unix.RTM_DELVLAN:
			if v, ok := parseVLANs(msg.Data); ok {
				batch.events = append(batch.events, event{vlans: v, deleted: typ == unix.RTM_DELVLAN})
			}
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			e, ok := parseEntry(msg.Data, now)
			if !ok {
				break
			}
			ev, hear := g.admit(typ == unix.RTM_DELNEIGH, e)
			if !hear {
				batch.refused++
				break
			}
			batch.events = append(batch.events, ev)
		}
		b = b[msg.Header.Length:]
	}
}

// Apply takes over a batch. The change counts also if there is an error: it
// tells of a refresh that failed, or of a resync, which the next Apply then
// tries again.
//
// Events tell how something was when they were made. Those that were queued
// before a resync are applied after it; the mirror is then behind for a moment,
// and right again when the last of them has been applied.
func (m *Mirror) Apply(b Batch) (Change, error) {
	if b.Overflow || m.stale {
		m.stale = true
		return m.Resync()
	}
	var c Change
	for i := range b.events {
		e := &b.events[i]
		switch {
		case e.link != nil:
			m.applyLink(e.family, e.deleted, e.link, &c)
		case e.vlans != nil:
			m.applyVLANs(e.deleted, e.vlans, &c)
		default:
			m.applyEntry(e, &c)
		}
	}
	if c.Topology {
		m.gate.roles(m.Ports)
	}
	c.FDB = unique(c.FDB)
	return c, m.settle(b.drained)
}

// Resync reads everything again. After an error the mirror is as it was.
//
// It also repairs what events can't: the kernel makes some of them outside the
// lock that orders the changes, so two about the same thing may come in the
// wrong order, and a dump of a table from which entries are deleted meanwhile
// may leave some out. Nor does the kernel tell that it shortens a bridge's
// ageing time while its spanning tree changes. Call it now and then.
func (m *Mirror) Resync() (Change, error) {
	between := m.Between
	if m.stale || between == nil {
		between = func() {}
	}
	m.stale = true
	c := Change{Resync: true}
	next := blank(m.options)
	full := map[int]bool{}
	epoch := m.gate.begin()
	if err := next.dumpLinks(m.requests); err != nil {
		m.gate.end(nil, nil)
		return Change{}, fmt.Errorf("reading the links: %w", err)
	}
	next.taken = m.taken
	next.relate()
	if err := next.dumpVLANs(m.requests, m.vlans); err != nil {
		m.gate.end(nil, nil)
		return Change{}, fmt.Errorf("reading the ports' VLANs: %w", err)
	}
	next.placeAll(&Change{})
	next.FDB = make(map[vswitch.FDBKey]vswitch.FDBEntry, len(m.FDB))
	var err error
	if m.gate == nil {
		err = next.dumpFDB(m.requests)
	} else {
		err = next.dumpPorts(m.gate, full, between)
	}
	if err != nil {
		m.gate.end(nil, nil)
		return Change{}, fmt.Errorf("reading the forwarding tables: %w", err)
	}
	m.gate.end(next, full)
	m.gate.roles(next.Ports)
	c.Topology = !maps.Equal(m.Bridges, next.Bridges) || !maps.EqualFunc(m.Ports, next.Ports, samePort) ||
		!maps.Equal(m.promiscuous(), next.promiscuous())
	diffFDB(m.FDB, next.FDB, &c)
	c.FDB = unique(c.FDB)
	m.links, m.vlans, m.taken, m.bonded = next.links, next.vlans, next.taken, next.bonded
	m.Bridges, m.Ports = next.Bridges, next.Ports
	m.FDB, m.entries = next.FDB, next.entries
	m.stale, m.epoch = false, epoch
	return c, nil
}

// dumpLinks reads all links, again if they changed meanwhile.
func (m *Mirror) dumpLinks(c *conn) error {
	attributes := netlink.NewAttributeEncoder()
	attributes.Uint32(unix.IFLA_EXT_MASK, rtextFilterSkipStats)
	req, err := request(unix.RTM_GETLINK, unix.IfInfomsg{}, attributes)
	if err != nil {
		return err
	}
	for range 10 {
		clear(m.links)
		err = c.dump(req, func(b []byte) bool {
			if _, l, ok := parseLink(b); ok {
				l.askTSO()
				m.links[l.index] = l
			}
			return true
		})
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	return err
}

func (m *Mirror) promiscuous() map[int]bool {
	set := map[int]bool{}
	for index := range m.Bridges {
		if m.links[index].promiscuous {
			set[index] = true
		}
	}
	return set
}

// Holds gives the reasons to hold ports back that lie in their bridge and that
// vswitch.Bridge has no field for, by the bridge's ifindex. The map is the
// caller's.
func (m *Mirror) Holds() map[int][]vswitch.HoldReason {
	holds := map[int][]vswitch.HoldReason{}
	for index := range m.promiscuous() {
		holds[index] = []vswitch.HoldReason{vswitch.Hold(vswitch.HoldSettings,
			"bridge %s is promiscuous, so the host gets a copy of every frame; end the capture on it", m.Bridges[index].Name)}
	}
	return holds
}

// Observation gives the bridges and ports for a plan. The maps are the
// caller's; Holds and Attached are empty.
func (m *Mirror) Observation() *vswitch.Observation {
	return &vswitch.Observation{Bridges: maps.Clone(m.Bridges), Ports: maps.Clone(m.Ports)}
}
