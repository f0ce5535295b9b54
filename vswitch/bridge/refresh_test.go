package bridge

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// forwarding makes a bridge with taps vnet0 and so on that forward, and who follows it.
func forwarding(t testing.TB, n int) (br int, taps []tap, f *follower) {
	t.Helper()
	newNetns(t)
	f = follow(t, Options{})
	br = addBridge(t, "br0")
	for i := range n {
		p := addTap(t, fmt.Sprintf("vnet%d", i))
		enslave(t, p.index, br)
		f.wantPort("the tap forwards", p.index, func(p vswitch.Port) bool { return p.Up && p.STP == vswitch.STPForwarding })
		taps = append(taps, p)
	}
	return br, taps, f
}

func twoTaps(t *testing.T) (br int, p, q tap, f *follower) {
	t.Helper()
	br, taps, f := forwarding(t, 2)
	return br, taps[0], taps[1], f
}

func TestRefreshKeepsEntries(t *testing.T) {
	br, p, _, f := twoTaps(t)
	const ageing = 2 * time.Second
	setBridge(t, br, nl.IFLA_BR_AGEING_TIME, uint32(ageing/(10*time.Millisecond)))
	used, silent := vswitch.FDBKey{Bridge: br, MAC: mac(1)}, vswitch.FDBKey{Bridge: br, MAC: mac(2)}
	p.send(t, used.MAC)
	p.send(t, silent.MAC)
	f.wantEntry("an address is learned", used, p.index)
	f.wantEntry("another too", silent, p.index)
	learned := f.FDB[used].Updated

	tick := time.NewTicker(ageing / 4)
	defer tick.Stop()
	late := time.After(deadline)
	for f.FDB[silent].Port != 0 || time.Since(learned) < 2*ageing+ageing/2 {
		select {
		case b := <-f.batches:
			f.apply(b)
		case <-tick.C:
			must(t, f.Refresh([]vswitch.FDBEntry{f.FDB[used]}))
		case <-late:
			t.Fatalf("the silent address does not age out: %+v", f.FDB)
		}
		if f.FDB[used].Port != p.index {
			t.Fatalf("the address in use is gone after %v", time.Since(learned))
		}
	}
	s := fresh(t, Options{})
	if s.FDB[used].Port != p.index || s.FDB[silent].Port != 0 {
		t.Errorf("the kernel has %+v", s.FDB)
	}
	f.wantEntry("without refresh it ages out", used, 0)
}

// The kernel takes a refresh for a move, so one that crosses the news of a real
// move undoes it. The bridge's word wins.
func TestRefreshCrossesMove(t *testing.T) {
	key := vswitch.FDBKey{MAC: mac(1)}
	// split is after how many events the batch is cut in two.
	for split := range 3 {
		br, p, q, _ := twoTaps(t)
		key.Bridge = br
		p.send(t, key.MAC)
		m := open(t, Options{})
		stale := m.FDB[key]
		q.send(t, key.MAC)
		if s := fresh(t, Options{}); stale.Port != p.index || s.FDB[key].Port != q.index {
			t.Fatalf("entry was %+v, is %+v", stale, s.FDB[key])
		}
		must(t, m.Refresh([]vswitch.FDBEntry{stale}))
		if s := fresh(t, Options{}); s.FDB[key].Port != p.index {
			t.Fatalf("a stale refresh does not move the entry: %+v; the rule is not needed any more", s.FDB[key])
		}
		b, err := m.Receive()
		must(t, err)
		b.events = slices.DeleteFunc(b.events, func(e event) bool { return e.link != nil }) // a late carrier
		if len(b.events) != 2 || b.drained != 1 {
			t.Fatalf("batch is %+v, want the move and its undoing", b)
		}
		for _, part := range []Batch{{events: b.events[:split]}, {events: b.events[split:], drained: b.drained}} {
			_, err := m.Apply(part)
			must(t, err)
			if _, ok := m.pending[key]; ok && part.drained == 0 && split > 0 {
				t.Errorf("split %d: a move that has been answered is still pending, and would be answered again", split)
			}
		}
		if s := fresh(t, Options{}); s.FDB[key].Port != q.index {
			t.Errorf("split %d: the entry stays where the refresh put it", split)
		}
		if len(m.pending) != 0 || len(m.moved) != 0 {
			t.Errorf("split %d: still pending: %v, moved: %v", split, m.pending, m.moved)
		}
		batches, _ := readAll(t, m)
		if m.FDB[key].Port != q.index || len(batches) != 1 {
			t.Errorf("split %d: mirror has %+v after %d batches, want port %d after one", split, m.FDB[key], len(batches), q.index)
		}

		// A move that comes later is the bridge's own business.
		p.send(t, key.MAC)
		batches, _ = readAll(t, m)
		if len(batches) != 1 || len(batches[0].events) != 1 || m.FDB[key].Port != p.index {
			t.Errorf("split %d: a later move leads to %+v in %d batches", split, m.FDB[key], len(batches))
		}
	}
}

// A move after the refresh looks the same, and answering it does no harm.
func TestMoveAfterRefresh(t *testing.T) {
	br, p, q, _ := twoTaps(t)
	key := vswitch.FDBKey{Bridge: br, MAC: mac(1)}
	p.send(t, key.MAC)
	m := open(t, Options{})
	must(t, m.Refresh([]vswitch.FDBEntry{m.FDB[key]}))
	q.send(t, key.MAC)
	if batches, _ := readAll(t, m); len(batches) != 1 || m.FDB[key].Port != q.index || len(m.pending) != 0 {
		t.Errorf("entry is %+v after %d batches, pending %v", m.FDB[key], len(batches), m.pending)
	}
	if s := fresh(t, Options{}); s.FDB[key].Port != q.index {
		t.Errorf("the kernel has %+v, want port %d", s.FDB[key], q.index)
	}
}

func TestRefreshLeavesOut(t *testing.T) {
	br, p, q, f := twoTaps(t)
	for i, state := range []int{netlink.NUD_REACHABLE, netlink.NUD_NOARP, netlink.NUD_PERMANENT} {
		must(t, netlink.NeighSet(neigh(p.index, mac(i), 0, state, 0)))
	}
	learn(t, q.index, mac(3), 0)
	f.wantEntry("entries are there", vswitch.FDBKey{Bridge: br, MAC: mac(3)}, q.index)
	setPort(t, q.index, nl.IFLA_BRPORT_LEARNING, []byte{0})
	f.wait("a port does not learn", func() bool { return !f.links[q.index].learning })

	var all []vswitch.FDBEntry
	for _, e := range f.FDB {
		all = append(all, e)
	}
	moved := f.FDB[vswitch.FDBKey{Bridge: br, MAC: mac(0)}]
	moved.Port = q.index
	all = append(all, moved, vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: br, MAC: mac(99)}, Port: p.index})
	must(t, f.Refresh(all))
	if len(f.pending) != 1 || f.pending[vswitch.FDBKey{Bridge: br, MAC: mac(0)}] != p.index {
		t.Errorf("refreshed are %v, want the learned one of the port that learns", f.pending)
	}
	f.wantFresh()
	if len(f.FDB) != len(all)-2 {
		t.Errorf("refreshing changed the table: %v", f.FDB)
	}
}

// Ports, VLANs and entries that went away meanwhile are no error; others are
// told apart from them, and don't keep the rest from being refreshed.
func TestRefreshErrors(t *testing.T) {
	br, p, q, f := twoTaps(t)
	entry := func(port int, m vswitch.MAC) vswitch.FDBEntry {
		return vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: br, MAC: m}, Port: port}
	}
	must(t, f.use([]vswitch.FDBEntry{entry(1<<20, mac(1))}))
	must(t, netlink.LinkSetNoMaster(byIndex(t, q.index)))
	must(t, f.use([]vswitch.FDBEntry{entry(q.index, mac(3))}))

	many := []vswitch.FDBEntry{entry(p.index, vswitch.MAC{})}
	for i := range 2*refreshBatch + 10 {
		many = append(many, entry(p.index, mac(i)))
	}
	many = append(many, entry(p.index, vswitch.MAC{}))
	err := f.use(many)
	want := "refreshing forwarding entries: the kernel refused 2; the first, 00:00:00:00:00:00 on port "
	if err == nil || len(err.Error()) < len(want) || err.Error()[:len(want)] != want {
		t.Errorf("error is %v, want %s…", err, want)
	}
	f.sync()
	for _, e := range many {
		if e.MAC != (vswitch.MAC{}) && f.FDB[e.FDBKey].Port != p.index {
			t.Errorf("%v is not refreshed", e.MAC)
		}
	}
}

// The request, byte by byte, because not every kernel that runs the tests has
// VLANs.
func TestUseRequest(t *testing.T) {
	e := vswitch.FDBEntry{FDBKey: vswitch.FDBKey{Bridge: 2, VLAN: 7, MAC: mac(1)}, Port: 3}
	req, err := useRequest(e)
	must(t, err)
	got, ok := parseEntry(appendAttribute(req.Data, netlink.NDA_MASTER, []byte{2, 0, 0, 0}), time.Time{})
	if !ok || got != e {
		t.Errorf("request says %+v, want %+v", got, e)
	}
	if b := req.Data; b[10] != netlink.NTF_MASTER|netlink.NTF_USE || !slices.Contains(b, 7) {
		t.Errorf("request is % x", b)
	}
	if !gone(e, unix.EINVAL) || gone(vswitch.FDBEntry{}, unix.EINVAL) || gone(e, unix.EPERM) {
		t.Error("errors are not told apart")
	}
}

// What is pending has a bound: the table itself, until the socket is drained.
func TestPendingIsBounded(t *testing.T) {
	_, p, _, f := twoTaps(t)
	addEntries(t, p.index, 1000)
	f.sync()
	var all []vswitch.FDBEntry
	for _, e := range f.FDB {
		all = append(all, e)
	}
	for range 5 {
		must(t, f.Refresh(all))
	}
	if len(f.pending) != 1000 {
		t.Errorf("%d are pending, want 1000", len(f.pending))
	}
	f.sync()
	if f.pending != nil {
		t.Errorf("%d are pending after the socket was drained", len(f.pending))
	}
}

// A bridge that is not VLAN-aware makes an entry in each VLAN of the port.
func TestRefreshDoesNotFillTheTable(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := awareBridge(t, "br0")
	setVLANFiltering(t, br, 0)
	f.wait("the bridge is not VLAN-aware", func() bool { return !f.Bridges[br].VLANFiltering })
	p := addTap(t, "vnet0")
	enslave(t, p.index, br)
	f.wantPort("the tap forwards", p.index, func(p vswitch.Port) bool { return p.Up && p.STP == vswitch.STPForwarding })
	key := vswitch.FDBKey{Bridge: br, MAC: mac(1)}
	p.send(t, key.MAC)
	f.wantEntry("an address is learned", key, p.index)
	twins := func() (n int) {
		for k := range fresh(t, Options{}).FDB {
			if k.MAC == key.MAC && k.VLAN != 0 {
				n++
			}
		}
		return n
	}
	must(t, f.Refresh([]vswitch.FDBEntry{f.FDB[key]}))
	if n := twins(); n != 1 {
		t.Fatalf("a refresh has made %d entries in VLANs, not 1: the rule is not needed any more", n)
	}
	must(t, netlink.BridgeVlanAddRange(byIndex(t, p.index), 100, 200, false, false, false, true))
	f.wantVLANs(p.index, "1 pvid untagged, 100-200")
	must(t, f.Refresh([]vswitch.FDBEntry{f.FDB[key]}))
	if n := twins(); n != 1 {
		t.Errorf("there are %d entries in VLANs after a refresh, want 1", n)
	}
}
