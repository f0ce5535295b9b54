package bridge

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/bridge/sieve"
)

// A gate bounds how many learned entries of each port the mirror keeps, and lets
// it hear of no others: a guest that sends from a million addresses must neither
// fill the daemon's memory nor keep it from hearing of other ports. It works where
// events are read, and has those of ports without room dropped by the kernel.
//
// An entry beyond the bound is one that the mirror does not have. What the mirror
// has it hears of always, also that it has moved to a port beyond its bound.
type gate struct {
	perPort, perUplink int // 0: no bound

	// turn counts the sieve's renewals, and emptied is the last of them before the
	// socket was found empty.
	turn, emptied atomic.Uint64

	mu      sync.Mutex
	sieve   *sieve.Sieve
	uplinks map[int]bool
	known   map[vswitch.FDBKey]int32 // what the mirror holds or is about to hear of, and its owner
	entries map[int32]int            // of these, by owner
	shut    map[int]uint64           // ports without room: how much the sieve had dropped at the last look
	full    map[int]bool             // ports that had entries beyond their bound at the last look or since
	refused map[int]uint64           // how often, by port, the sieve's drops of open ports included
	epoch   uint64                   // how often everything has begun to be read
	// While everything is read again: the last word of each entry that was let
	// through (0: gone), and whether a port has been shut. The sieve notes the rest.
	looking bool
	heard   map[vswitch.FDBKey]int32
	dropped bool
}

func newGate(perPort, perUplink int) (*gate, error) {
	s, err := sieve.New()
	if err != nil {
		return nil, err
	}
	return &gate{
		perPort: perPort, perUplink: perUplink, sieve: s, shut: map[int]uint64{},
		known: map[vswitch.FDBKey]int32{}, entries: map[int32]int{}, full: map[int]bool{}, refused: map[int]uint64{},
	}, nil
}

// bound gives how many entries a port may have.
func (g *gate) bound(uplink bool) int {
	n := g.perPort
	if uplink {
		n = g.perUplink
	}
	if n == 0 {
		return math.MaxInt
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
			g.sieve.Miss(e.FDBKey)
		}
		return ev, false
	}
	if known {
		g.entries[port]--
		delete(g.known, e.FDBKey)
		defer g.fit(port)
	}
	last := int32(0)
	if !deleted && !ev.beyond {
		last = now
		g.known[e.FDBKey] = now
		g.entries[now]++
		defer g.fit(now)
	}
	if g.looking {
		g.heard[e.FDBKey] = last
	}
	return ev, true
}

// fit shuts a port that has no room for more, or opens it.
func (g *gate) fit(owner int32) {
	port := int(owner)
	was, shut := g.shut[port]
	switch room := owner < 0 || g.entries[owner] < g.bound(g.uplinks[port]); {
	case room && shut:
		n := g.sieve.Open(port)
		g.refused[port] += n
		if n > was {
			g.full[port] = true
		}
		delete(g.shut, port)
	case !room && !shut:
		g.sieve.Shut(port)
		g.shut[port] = 0
		g.dropped = true
	}
}

// begin tells that everything is going to be read. Events of an epoch before the
// one that it gives are older than what is read.
func (g *gate) begin() (epoch uint64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sieve.Worn() {
		if err := g.sieve.Renew(); err != nil {
			return 0, err
		}
		g.turn.Add(1)
	}
	g.sieve.ForgetMissed()
	g.looking, g.heard, g.dropped = true, map[vswitch.FDBKey]int32{}, len(g.shut) > 0
	g.epoch++
	return g.epoch, nil
}

// end tells that everything has been read into next, or nothing if that is nil.
// full are the ports of which there was more. Entries about which no word was let
// through meanwhile, though there was some, are removed from next: it may have them
// from before.
func (g *gate) end(next *Mirror, full map[int]bool) error {
	err := g.hold(next)
	g.mu.Lock()
	defer g.mu.Unlock()
	heard := g.heard
	g.looking, g.heard = false, nil
	if next == nil || err != nil {
		return err
	}
	for key, e := range next.FDB {
		if _, known := g.known[key]; !known && g.sieve.Missed(key) {
			next.remove(key)
			next.partial[e.Port] = true // and is read first
			delete(next.read, e.Port)
		}
	}
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
	g.full = full
	g.count()
	for port := range g.shut {
		g.shut[port] = g.sieve.Dropped(port)
	}
	for port := range g.refused {
		if _, there := next.Ports[port]; !there {
			delete(g.refused, port)
		}
	}
	if g.sieve.Renewing() && g.emptied.Load() == g.turn.Load() {
		for key := range g.known {
			g.sieve.Hold(key)
		}
		g.sieve.Renewed()
	}
	return nil
}

// hold has all word of what has been read pass from now on. If some was dropped
// before, that has been noted when it returns.
func (g *gate) hold(next *Mirror) error {
	if next == nil {
		return nil
	}
	g.mu.Lock()
	for key := range next.FDB {
		g.sieve.Hold(key)
	}
	dropped := g.dropped
	g.mu.Unlock()
	if !dropped {
		return nil
	}
	return g.sieve.Settle()
}

// count counts the known entries anew.
func (g *gate) count() {
	clear(g.entries)
	for _, port := range g.known {
		g.entries[port]++
	}
	for port := range g.entries {
		g.fit(port)
	}
	for port := range g.shut {
		g.fit(int32(port))
	}
}

func (g *gate) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sieve.Close()
}

// roles tells which ports are uplinks.
func (g *gate) roles(ports map[int]vswitch.Port) {
	uplinks := map[int]bool{}
	for index, p := range ports {
		if p.Role == vswitch.RoleUplink {
			uplinks[index] = true
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !maps.Equal(g.uplinks, uplinks) {
		g.uplinks = uplinks
		g.count()
	}
}
