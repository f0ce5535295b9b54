package bridge

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

func learnedAt(n, port int) vswitch.FDBEntry {
	return vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: 1, MAC: mac(n)}, Port: port, Origin: vswitch.OriginLearned}
}

// A mirror with bounds keeps no more than these, whatever the bridge has, and what
// it keeps is right: compared with the whole.
func TestBoundedMirror(t *testing.T) {
	br, p, q, _ := twoTaps(t)
	const bound = 50
	m := open(t, Options{PerPort: bound})
	check := func(when string, full ...int) {
		t.Helper()
		readAll(t, m)
		want := map[int]bool{}
		for _, index := range full {
			want[index] = true
		}
		whole := open(t, Options{})
		learned := map[int]int{}
		for key, e := range m.FDB {
			if w := whole.FDB[key]; w.Port != e.Port || w.Origin != e.Origin {
				t.Errorf("%s: the mirror has %+v, the bridge %+v", when, e, w)
			}
			if bounded(e) {
				learned[e.Port]++
			}
		}
		for port, n := range learned {
			if n > bound+3 { // addresses of the ports' own count too
				t.Errorf("%s: the mirror holds %d entries of port %d", when, n, port)
			}
		}
		for key, w := range whole.FDB {
			if _, ok := m.FDB[key]; !ok && !bounded(w) && !want[w.Port] {
				t.Errorf("%s: the mirror lacks %+v", when, w)
			}
		}
		flooding := map[int]bool{}
		for index := range m.Flooding() {
			flooding[index] = true
		}
		if diff := cmp.Diff(want, flooding); diff != "" {
			t.Errorf("%s: ports beyond their bound (-want +got):\n%s", when, diff)
		}
	}
	has := func(when string, n, port int) {
		t.Helper()
		key := vswitch.FDBKey{Bridge: br, MAC: mac(n)}
		if e, ok := m.FDB[key]; port == 0 && ok || port != 0 && (!ok || e.Port != port) {
			t.Errorf("%s: address %d is %+v (%v), want port %d", when, n, e, ok, port)
		}
	}
	for i := range 20 {
		q.send(t, mac(10000+i))
	}
	addEntries(t, p.index, 5000)
	check("after a flood", p.index)
	if n := m.Refused()[p.index]; n < 5000-bound || n > 5000 {
		t.Errorf("%d entries are counted as refused", n)
	}
	has("beside a flood", 10003, q.index)
	// The flooder takes others' addresses, which must not stay where they were.
	p.send(t, mac(10003))
	check("after a known address has moved beyond the bound", p.index)
	has("after its move", 10003, 0)
	q.send(t, mac(10003))
	check("after it has moved back", p.index)
	has("after its way back", 10003, q.index)
	for range 3 {
		if _, err := m.Resync(); err != nil {
			t.Fatal(err)
		}
		check("after everything was read again", p.index)
		has("after everything was read again", 10003, q.index)
	}
	if len(m.gate.known) != len(m.FDB) {
		t.Errorf("the gate knows %d entries, the mirror %d", len(m.gate.known), len(m.FDB))
	}
}

// A gateModel has a kernel whose events go through the gate's filter into a queue,
// which is read some time later, and a mirror that applies them later still.
type gateModel struct {
	t       *testing.T
	r       *rand.Rand
	g       *gate
	kernel  map[vswitch.FDBKey]vswitch.FDBEntry
	queue   []event // in the socket
	turn    uint64
	heard   []event
	mirror  *Mirror
	busy    bool // nobody reads while everything is read again
	dropped int
}

const modelAddresses, modelPorts, modelBound = 60, 3, 5

// message makes an event as the kernel does.
func (m *gateModel) message(ev event) []byte {
	typ := uint16(unix.RTM_NEWNEIGH)
	if ev.deleted {
		typ = unix.RTM_DELNEIGH
	}
	body := entryMessage(ev.entry.Port, ev.entry.Bridge, uint16(ev.entry.VLAN), ev.entry.MAC, unix.NUD_REACHABLE, 0)
	b := native.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = native.AppendUint16(b, typ)
	return append(append(b, make([]byte, 10)...), body...)
}

func (m *gateModel) change() {
	e := learnedAt(m.r.IntN(modelAddresses), 10+m.r.IntN(modelPorts))
	_, there := m.kernel[e.FDBKey]
	ev := event{entry: e, deleted: there && m.r.IntN(3) == 0}
	if ev.deleted {
		ev.entry = m.kernel[e.FDBKey]
		delete(m.kernel, e.FDBKey)
	} else {
		m.kernel[e.FDBKey] = e
	}
	pass, err := m.g.sieve.Passes(m.message(ev))
	must(m.t, err)
	if pass {
		m.queue = append(m.queue, ev)
	} else {
		m.dropped++
	}
	if !(m.busy && m.g.looking) && m.r.IntN(4) == 0 {
		m.read(m.r.IntN(len(m.queue) + 1))
	}
}

// read reads the first n events.
func (m *gateModel) read(n int) {
	for _, ev := range m.queue[:n] {
		if ev, hear := m.g.admit(ev.deleted, ev.entry); hear {
			m.heard = append(m.heard, ev)
		}
	}
	if m.queue = m.queue[n:]; len(m.queue) == 0 {
		m.g.emptied.Store(m.turn)
		m.turn = m.g.turn.Load()
	}
}

func (m *gateModel) apply() {
	for i := range m.heard {
		m.mirror.applyEntry(&m.heard[i], &Change{})
	}
	m.heard = nil
}

// Whatever the filter drops, and whenever what it lets through is read, the mirror is
// right in the end: also while everything is read again, by a dump that has read each
// entry at any moment of the time, and while the filter's table is made anew.
func TestGateModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &gateModel{
		t: t, r: rand.New(rand.NewPCG(seed, 0)), g: gateFor(t, modelBound),
		kernel: map[vswitch.FDBKey]vswitch.FDBEntry{}, mirror: blank(Options{}),
	}
	for round := range 150 {
		for range 60 {
			m.change()
		}
		if m.r.IntN(2) == 0 {
			m.apply()
		}
		switch {
		case round == 20:
			// Addresses that come and are lost with an overflow, until the table is worn.
			for n := 1000; !m.g.sieve.Worn(); n++ {
				_, err := m.g.sieve.Passes(m.message(event{entry: learnedAt(n, 20)}))
				must(t, err)
			}
		case round%4 == 0:
			must(t, m.g.sieve.Renew())
			m.g.turn.Add(1)
		}
		m.busy = m.r.IntN(2) == 0
		epoch, err := m.g.begin()
		must(t, err)
		next := blank(Options{})
		for i := range modelAddresses {
			for range m.r.IntN(3) {
				m.change()
			}
			if e, ok := m.kernel[learnedAt(i, 0).FDBKey]; ok && next.entries[e.Port] < modelBound {
				next.put(e)
			}
		}
		must(t, m.g.end(next, map[int]bool{}))
		next.epoch = epoch
		m.mirror = next
		for range m.r.IntN(20) {
			m.change()
		}
		m.read(len(m.queue))
		m.apply()
		for key, e := range m.mirror.FDB {
			if m.kernel[key] != e {
				t.Fatalf("round %d: the mirror has %+v, the kernel %+v", round, e, m.kernel[key])
			}
			if m.g.known[key] != owner(e) {
				t.Fatalf("round %d: the gate knows port %d of %+v", round, m.g.known[key], e)
			}
		}
		if len(m.g.known) != len(m.mirror.FDB) {
			t.Fatalf("round %d: the gate knows %d entries, the mirror has %d", round, len(m.g.known), len(m.mirror.FDB))
		}
	}
	if n := m.g.turn.Load(); n < 30 || m.g.sieve.Worn() || m.dropped < 500 {
		t.Errorf("the filter dropped %d events; its table was made anew %d times, and is worn: %v", m.dropped, n, m.g.sieve.Worn())
	}
	t.Logf("%d events dropped", m.dropped)
}

// A table that is made anew lacks what was in the queue before: it must not be in
// force until that has been read.
func TestRenewalWaitsForTheQueue(t *testing.T) {
	g := gateFor(t, modelBound)
	for _, read := range []bool{false, true} {
		must(t, g.sieve.Renew())
		g.turn.Add(1)
		if read {
			g.emptied.Store(g.turn.Load())
		}
		_, err := g.begin()
		must(t, err)
		must(t, g.end(blank(Options{}), map[int]bool{}))
		if g.sieve.Renewing() == read {
			t.Errorf("with the queue read %v, the table is in force: %v", read, !g.sieve.Renewing())
		}
	}
}

// The kernel drops a flood of a port without room before anybody is woken, and word
// of what the mirror has comes through all the same.
func TestFloodIsDropped(t *testing.T) {
	const bound, addresses = 50, 50_000
	br, p, q, _ := twoTaps(t)
	m := open(t, Options{PerPort: bound})
	at := func(n int) int { return m.FDB[vswitch.FDBKey{Bridge: br, MAC: mac(n)}].Port }
	for n := range bound {
		p.send(t, mac(n))
	}
	for n := range 5 {
		q.send(t, mac(1000+n))
	}
	readAll(t, m)
	if at(0) != p.index || at(bound-1) != p.index || at(1000) != q.index {
		t.Fatalf("the mirror has %+v", m.FDB)
	}
	for n := range addresses {
		p.send(t, mac(10_000+n))
		switch n {
		case addresses / 4:
			p.send(t, mac(1000))
			q.send(t, mac(0)) // one of the flooder's, which makes room for another
		case addresses / 2:
			p.send(t, mac(1001))
			q.send(t, mac(1001))
		}
	}
	// Nobody has read anything meanwhile. One in 10,000 has the hash of an entry that
	// the mirror has.
	if n := m.events.queued(t); n == 0 || n > 100_000 {
		t.Errorf("%d bytes are in the socket's queue, want those of the few events of known addresses", n)
	}
	readAll(t, m)
	if n := m.Refused()[p.index]; n < addresses-100 || n > addresses+10 {
		t.Errorf("%d events are counted as refused, want %d", n, addresses)
	}
	if len(m.Flooding()[p.index]) == 0 {
		t.Error("the port is not shown as flooding")
	}
	for n, port := range map[int]int{0: q.index, 1: p.index, 1000: 0, 1001: q.index, 1002: q.index} {
		if at(n) != port {
			t.Errorf("address %d is at port %d, want %d", n, at(n), port)
		}
	}
	q.send(t, mac(2)) // makes room for another
	readAll(t, m)
	p.send(t, mac(5000))
	readAll(t, m)
	if at(5000) != p.index {
		t.Error("a port that has room again gets no entry")
	}
}

func gateFor(t *testing.T, bound int) *gate {
	t.Helper()
	g, err := newGate(bound, bound)
	must(t, err)
	t.Cleanup(func() { must(t, g.close()) })
	return g
}

// queued gives how much memory the events in a socket's queue take, some 768 bytes
// each.
func (c *conn) queued(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/netlink")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if f[2] == strconv.FormatUint(uint64(c.PID()), 10) {
			n, err := strconv.Atoi(f[4])
			must(t, err)
			return n
		}
	}
	t.Fatalf("no socket %d in:\n%s", c.PID(), text)
	return 0
}

// What is not learned takes no room: a port has its own address in each of its VLANs.
func TestGateCountsLearnedEntriesAlone(t *testing.T) {
	g := gateFor(t, 2)
	entry := func(vlan vswitch.VLAN, origin vswitch.Origin) vswitch.FDBEntry {
		return vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: 1, VLAN: vlan}, Port: 2, Origin: origin}
	}
	for v := range vswitch.VLAN(10) {
		g.admit(false, entry(1+v, vswitch.OriginLocal))
	}
	for v := range vswitch.VLAN(2) {
		if ev, hear := g.admit(false, entry(100+v, vswitch.OriginLearned)); ev.beyond || !hear {
			t.Errorf("learned entry %d is beyond the bound of 2", v)
		}
	}
	if ev, _ := g.admit(false, entry(102, vswitch.OriginLearned)); !ev.beyond {
		t.Error("a third learned entry is not beyond the bound of 2")
	}
}
