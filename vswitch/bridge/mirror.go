// Package bridge mirrors the Linux bridges of a network namespace into
// vswitch's types: bridges, ports with their role and state, and forwarding
// entries. It hears of changes by rtnetlink and reads everything again after an
// overflow. It also refreshes the ages of learned entries whose frames the
// bridge does not see.
//
// It needs Linux 5.10.
package bridge

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/bridge/sieve"
)

// DefaultReceiveBuffer is the size of the event socket's receive buffer in
// bytes. The kernel doubles it, and charges about 768 bytes for each FDB event:
// room for some 40,000.
const DefaultReceiveBuffer = 16 << 20

// maxBatch bounds the events per batch, and with them the memory that a flood
// of new addresses can take, at about 80 bytes each.
const maxBatch = 8192

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
	read    map[int]uint64           // the epoch of the last look that read a port's table
	partial map[int]bool             // ports whose table has not been read since events were lost
	readFor time.Duration
	stale   bool // a resync is due

	events   *conn // of the goroutine that calls Receive
	buf      []byte
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
// reads their state. It needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN.
func Open(o Options) (*Mirror, error) {
	if o.ReceiveBuffer == 0 {
		o.ReceiveBuffer = DefaultReceiveBuffer
	}
	m := blank(o)
	if err := m.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the bridge mirror: %w", err), m.Close())
	}
	return m, nil
}

func (m *Mirror) open() (err error) {
	m.buf = make([]byte, maxDatagram)
	if m.gate, err = newGate(m.options.PerPort, m.options.PerUplink); err != nil {
		return err
	}
	if m.events, err = dial(); err != nil {
		return err
	}
	if err := m.events.subscribe(m.options.ReceiveBuffer, m.gate.sieve); err != nil {
		return fmt.Errorf("subscribing to bridge events: %w", err)
	}
	if m.requests, err = dial(); err != nil {
		return err
	}
	m.stale = true
	_, err = m.Resync()
	return err
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
		read:    map[int]uint64{},
		partial: map[int]bool{},
		readFor: readFor,
	}
}

// subscribe makes the socket hear of links and FDB entries; one socket for both
// keeps the order of their events. First it sizes the receive buffer, and has what
// nobody needs filtered out before it takes room in it.
func (c *conn) subscribe(size int, filter *sieve.Sieve) error {
	if err := c.SetReadBuffer(size); err != nil {
		return fmt.Errorf("setting the receive buffer to %d bytes: %w", size, err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if err := filter.Attach(raw); err != nil {
		return err
	}
	for _, group := range []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_BRVLAN} {
		if err := c.JoinGroup(group); err != nil && group != unix.RTNLGRP_BRVLAN { // since Linux 5.6
			return fmt.Errorf("joining group %d: %w", group, err)
		}
	}
	return nil
}

// Close ends the mirror. A blocked Receive returns os.ErrClosed.
func (m *Mirror) Close() (err error) {
	for _, c := range []*conn{m.events, m.requests} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if m.gate != nil {
		err = errors.Join(err, m.gate.close())
	}
	return err
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
	for reads := 0; reads < maxBatch && discarded <= enough; reads++ {
		// Before the read, so that an empty socket covers all of them.
		mark, turn := m.refreshes.Load(), m.gate.turn.Load()
		n, err := m.events.read(m.buf, reads == 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			batch.drained = mark
			m.gate.emptied.Store(turn)
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
		msg, rest, ok := nextMessage(b)
		if !ok {
			batch.Overflow, batch.events = true, nil
			return
		}
		b = rest
		switch msg.typ {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if family, l, ok := parseLink(msg.data); ok && (family == unix.AF_UNSPEC || family == unix.AF_BRIDGE) {
				batch.events = append(batch.events, event{link: l, family: family, deleted: msg.typ == unix.RTM_DELLINK})
			}
		case unix.RTM_NEWVLAN, unix.RTM_DELVLAN:
			if v, ok := parseVLANs(msg.data); ok {
				batch.events = append(batch.events, event{vlans: v, deleted: msg.typ == unix.RTM_DELVLAN})
			}
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			e, ok := parseEntry(msg.data, now)
			if !ok {
				break
			}
			if ev, hear := g.admit(msg.typ == unix.RTM_DELNEIGH, e); hear {
				batch.events = append(batch.events, ev)
			}
		}
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
	unheard := false
	for i := range b.events {
		e := &b.events[i]
		switch {
		case e.link != nil:
			m.applyLink(e.family, e.deleted, e.link, &c)
			unheard = unheard || m.upper(e.link)
		case e.vlans != nil:
			m.applyVLANs(e.deleted, e.vlans, &c)
		default:
			m.applyEntry(e, &c)
		}
	}
	if unheard {
		m.stale = true
		all, err := m.Resync()
		all.Gone = c.Gone
		return all, err
	}
	if c.Topology {
		m.gate.roles(m.Ports)
	}
	c.FDB = unique(c.FDB)
	return c, m.settle(b.drained)
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
		whose, remedy := "", "end the capture on it, or what else listens to all"
		if uppers := m.uppers(index); len(uppers) > 0 {
			whose, remedy = " for "+strings.Join(uppers, " and "), "have a veth as a port of it instead"
		}
		holds[index] = []vswitch.HoldReason{vswitch.Hold(vswitch.HoldSettings,
			"bridge %s is promiscuous%s, so the host gets a copy of every frame; %s", m.Bridges[index].Name, whose, remedy)}
	}
	return holds
}

// Observation gives the bridges and ports for a plan. The maps are the
// caller's; Holds and Attached are empty.
func (m *Mirror) Observation() *vswitch.Observation {
	return &vswitch.Observation{Bridges: maps.Clone(m.Bridges), Ports: maps.Clone(m.Ports)}
}
