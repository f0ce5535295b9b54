package bridge

import (
	"hash/maphash"
	"math"
	"sync"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A gate bounds how many learned entries of each port the mirror keeps, and lets
// it hear of no others: a guest that sends from a million addresses must neither
// fill the daemon's memory nor keep it from hearing of other ports. It works where
// events are read, so that a flood is over with after a look at each message. A
// nil gate has no bounds.
//
// An entry beyond the bound is one that the mirror does not have. What the mirror
// has it hears of always, also that it has moved to a port beyond its bound.
type gate struct {
	perPort, perUplink int // 0: no bound
	seed               maphash.Seed

	mu      sync.Mutex
	uplinks map[int]bool
	known   map[vswitch.FDBKey]int32 // what the mirror holds or is about to hear of, and its owner
	entries map[int32]int            // of these, by owner
	full    map[int]bool             // ports that had entries beyond their bound at the last look or since
	refused map[int]uint64           // how often, by port
	epoch   uint64                   // how often everything has begun to be read
	// While everything is read again: the last word of each entry that was let
	// through (0: gone), and in bits, by hash, of which entries word was not.
	looking bool
	heard   map[vswitch.FDBKey]int32
	missed  []uint64
}

// missedBits is the number of bits in gate.missed. A flood of 100,000 addresses per
// second sets one in twenty of them while everything is read again in a second.
const missedBits = 1 << 21

func newGate(perPort, perUplink int) *gate {
	if perPort == 0 && perUplink == 0 {
		return nil
	}
	return &gate{
		perPort: perPort, perUplink: perUplink, seed: maphash.MakeSeed(),
		known: map[vswitch.FDBKey]int32{}, entries: map[int32]int{}, full: map[int]bool{}, refused: map[int]uint64{},
	}
}

// bound gives how many entries a port may have.
func (g *gate) bound(uplink bool) int {
	n := math.MaxInt
	switch {
	case g == nil:
	case uplink && g.perUplink > 0:
		n = g.perUplink
	case !uplink && g.perPort > 0:
		n = g.perPort
	}
	return n
}

// bounded says whether an entry counts: people's and controllers' are theirs to
// bound.
func bounded(e vswitch.FDBEntry) bool { return e.Origin == vswitch.OriginLearned }

// owner gives the port that an entry counts for. Entries that don't count have one of
// their own, or a port in a thousand VLANs, in each of which it has its own address,
// would have no room for any other.
func owner(e vswitch.FDBEntry) int32 {
	if !bounded(e) {
		return -int32(e.Port)
	}
	return int32(e.Port)
}

// admit makes an event of an entry, and says whether the mirror is to hear of it.
func (g *gate) admit(deleted bool, e vswitch.FDBEntry) (ev event, hear bool) {
	ev = event{entry: e, deleted: deleted}
	if g == nil {
		return ev, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	ev.epoch = g.epoch
	port, known := g.known[e.FDBKey]
	now := owner(e)
	if !deleted && bounded(e) && !(known && port == now) && g.entries[now] >= g.bound(g.uplinks[e.Port]) {
		ev.beyond = true
		g.full[e.Port] = true
		g.refused[e.Port]++
	}
	if !known && (deleted || ev.beyond) {
		if g.looking {
			at := g.hash(e.FDBKey)
			g.missed[at/64] |= 1 << (at % 64)
		}
		return ev, false
	}
	if known {
		g.entries[port]--
		delete(g.known, e.FDBKey)
	}
	last := int32(0)
	if !deleted && !ev.beyond {
		last = now
		g.known[e.FDBKey] = now
		g.entries[now]++
	}
	if g.looking {
		g.heard[e.FDBKey] = last
	}
	return ev, true
}

func (g *gate) hash(key vswitch.FDBKey) uint64 {
	return maphash.Comparable(g.seed, key) % missedBits
}

// begin tells that everything is going to be read. Events of an epoch before the
// one that it gives are older than what is read.
func (g *gate) begin() (epoch uint64) {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.missed == nil {
		g.missed = make([]uint64, missedBits/64)
	}
	g.looking, g.heard = true, map[vswitch.FDBKey]int32{}
	g.epoch++
	return g.epoch
}

// end tells that everything has been read into next, or nothing if that is nil.
// full are the ports of which there was more. Entries about which the gate let no
// word through meanwhile are removed from next: it may have them from before.
func (g *gate) end(next *Mirror, full map[int]bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	heard := g.heard
	g.looking, g.heard = false, nil
	if next == nil {
		clear(g.missed)
		return
	}
	for key, e := range next.FDB {
		at := g.hash(key)
		if _, known := g.known[key]; !known && g.missed[at/64]&(1<<(at%64)) != 0 {
			next.remove(key)
			full[e.Port] = true
		}
	}
	clear(g.missed)
	clear(g.known)
	for key, e := range next.FDB {
		g.known[key] = owner(e)
	}
	// The mirror is yet to hear of these.
	for key, port := range heard {
		if port == 0 {
			delete(g.known, key)
		} else {
			g.known[key] = port
		}
	}
	clear(g.entries)
	for _, port := range g.known {
		g.entries[port]++
	}
	g.full = full
	for port := range g.refused {
		if _, there := next.Ports[port]; !there {
			delete(g.refused, port)
		}
	}
}

// roles tells which ports are uplinks.
func (g *gate) roles(ports map[int]vswitch.Port) {
	if g == nil {
		return
	}
	uplinks := map[int]bool{}
	for index, p := range ports {
		if p.Role == vswitch.RoleUplink {
			uplinks[index] = true
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.uplinks = uplinks
}

// Refused gives how often a port's entries were beyond its bound, by ifindex.
func (m *Mirror) Refused() map[int]uint64 {
	g := m.gate
	counts := map[int]uint64{}
	if g == nil {
		return counts
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for port, n := range g.refused {
		counts[port] = n
	}
	return counts
}

// Flooding gives a remark for each port that has more learned addresses than the
// mirror takes, by ifindex. The map is the caller's.
func (m *Mirror) Flooding() map[int][]vswitch.HoldReason {
	g := m.gate
	remarks := map[int][]vswitch.HoldReason{}
	if g == nil {
		return remarks
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for index := range g.full {
		if p, ok := m.Ports[index]; ok {
			remarks[index] = []vswitch.HoldReason{flooding(p, g.bound(p.Role == vswitch.RoleUplink))}
		}
	}
	return remarks
}

func flooding(p vswitch.Port, bound int) vswitch.HoldReason {
	r := vswitch.Hold(vswitch.HoldFlooding,
		"more than %d addresses are behind the port; frames from and for the others go by the bridge", bound)
	r.Direction = 0
	if p.Role != vswitch.RoleUplink {
		r.Text += "; fdb_per_port in the configuration is the limit"
	}
	return r
}
