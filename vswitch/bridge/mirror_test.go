package bridge

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

var seed = flag.Uint64("seed", 0, "seed of the random operations; 0 takes a new one")

// queued says whether Receive would end at once.
func queued(t *testing.T, m *Mirror) bool {
	t.Helper()
	raw, err := m.events.SyscallConn()
	must(t, err)
	n := 0
	must(t, raw.Control(func(fd uintptr) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	}))
	if err != nil && !errors.Is(err, unix.EINTR) { // by a signal while there is nothing
		t.Fatal(err)
	}
	return n > 0
}

// readAll applies what is queued, for a mirror without a reader.
func readAll(t *testing.T, m *Mirror) (batches []Batch, changes []Change) {
	t.Helper()
	for {
		// Receive blocks on an empty queue.
		if !queued(t, m) {
			return batches, changes
		}
		b, err := m.Receive()
		must(t, err)
		c, err := m.Apply(b)
		must(t, err)
		checkInvariants(t, m)
		batches, changes = append(batches, b), append(changes, c)
	}
}

func TestOverflow(t *testing.T) {
	_, p, q, f := twoTaps(t)
	f.wantPort("the other too", q.index, func(p vswitch.Port) bool { return p.STP == vswitch.STPForwarding })

	o := Options{ReceiveBuffer: 4096}
	m := open(t, o)
	old := m.FDB
	addEntries(t, p.index, 3000)
	must(t, netlink.LinkSetMTU(byIndex(t, q.index), 1400))
	b, err := m.Receive()
	must(t, err)
	if !b.Overflow || len(b.events) != 0 {
		t.Fatalf("batch after an overflow is %+v", b)
	}
	// What happens between the overflow and the resync comes again, as events.
	addEntries(t, q.index, 5)
	c, err := m.Apply(b)
	must(t, err)
	if !c.Resync || !c.Topology || len(c.FDB) != 3000 {
		t.Errorf("change has resync %v, topology %v and %d keys, want true, true and 3000", c.Resync, c.Topology, len(c.FDB))
	}
	if len(old) == len(m.FDB) {
		t.Error("Resync has changed the old map")
	}
	readAll(t, m)
	if diff := cmp.Diff(fresh(t, o), stateOf(m)); diff != "" {
		t.Errorf("after an overflow (-fresh +mirror):\n%s", diff)
	}
	for range 3 {
		must(t, netlink.LinkSetDown(byIndex(t, p.index)))
		must(t, netlink.LinkSetUp(byIndex(t, p.index)))
		f.wantPort("the tap forwards again", p.index, func(p vswitch.Port) bool { return p.STP == vswitch.STPForwarding })
		f.sync()
		addEntries(t, p.index, 1000)
	}
	overflowed := false
	batches, _ := readAll(t, m)
	for _, b := range batches {
		overflowed = overflowed || b.Overflow
	}
	if !overflowed {
		t.Error("thousands of changes did not overflow a tiny buffer")
	}
	if diff := cmp.Diff(fresh(t, o), stateOf(m)); diff != "" {
		t.Errorf("after more overflows (-fresh +mirror):\n%s", diff)
	}
}

// A flood of addresses comes in batches of bounded size, and none gets lost.
func TestFlood(t *testing.T) {
	_, taps, _ := forwarding(t, 1)
	p := taps[0]
	m := open(t, Options{})
	addEntries(t, p.index, maxBatch+100)
	batches, changes := readAll(t, m)
	n := 0
	for i, b := range batches {
		if n += len(changes[i].FDB); len(b.events) > maxBatch || b.Overflow {
			t.Errorf("batch has %d events, overflow %v", len(b.events), b.Overflow)
		}
	}
	if len(batches) < 2 || n != maxBatch+100 {
		t.Errorf("%d batches with %d keys, want at least 2 with %d", len(batches), n, maxBatch+100)
	}
}

// A failed resync leaves the mirror as it is, and is made up for.
func TestResyncAfterFailure(t *testing.T) {
	newNetns(t)
	m := open(t, Options{})
	addBridge(t, "br0")
	good := m.requests
	bad, err := dial()
	must(t, err)
	must(t, bad.Close())
	m.requests = bad
	if _, err := m.Apply(Batch{Overflow: true}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Apply gives %v, want %v", err, os.ErrClosed)
	}
	if len(m.Bridges) != 0 {
		t.Errorf("bridges are %v after a failed resync", m.Bridges)
	}
	m.requests = good
	if c, err := m.Apply(Batch{}); err != nil || !c.Resync || len(m.Bridges) != 1 {
		t.Errorf("the next Apply gives %+v, %v; bridges are %v", c, err, m.Bridges)
	}
}

// Answers that nobody has read are not taken for those to later requests.
func TestAnswersLeftOver(t *testing.T) {
	br, p, _, f := twoTaps(t)
	addEntries(t, p.index, 3000)
	f.sync()
	req, err := useRequest(vswitch.FDBEntry{FDBKey: vswitch.FDBKey{MAC: mac(1)}, Port: 1 << 20})
	must(t, err)
	_, err = f.requests.Send(req)
	must(t, err)
	req, err = request(unix.RTM_GETLINK, unix.IfInfomsg{}, mdnetlink.NewAttributeEncoder())
	must(t, err)
	req.Header.Flags |= unix.NLM_F_DUMP
	_, err = f.requests.Send(req)
	must(t, err)
	c, err := f.Resync()
	must(t, err)
	if len(f.FDB) < 3000 || len(f.Bridges) != 1 || len(c.FDB) != 0 {
		t.Errorf("mirror has bridges %v and %d entries, of which %d have changed", f.Bridges, len(f.FDB), len(c.FDB))
	}
	must(t, f.use([]vswitch.FDBEntry{{FDBKey: vswitch.FDBKey{Bridge: br, MAC: mac(1)}, Port: p.index}}))
}

// Only what concerns bridges reaches the mirror.
func TestFilter(t *testing.T) {
	newNetns(t)
	port := addTap(t, "vnet0").index // unlike a veth, whose other end the bridge would learn
	br := addBridge(t, "br0")
	enslave(t, port, br)
	m := open(t, Options{})
	readAll(t, m)
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: br, Family: unix.AF_INET, IP: []byte{10, 0, 0, 1}, HardwareAddr: make([]byte, 6), State: netlink.NUD_PERMANENT}))
	must(t, netlink.NeighAppend(&netlink.Neigh{LinkIndex: port, Family: unix.AF_BRIDGE, HardwareAddr: []byte{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF}))
	must(t, netlink.NeighSet(neigh(port, mac(5), 0, netlink.NUD_NOARP, 0)))
	n := 0
	batches, _ := readAll(t, m)
	for _, b := range batches {
		for _, e := range b.events {
			if e.link == nil {
				n++
			}
		}
	}
	if _, ok := m.FDB[vswitch.FDBKey{Bridge: br, MAC: mac(5)}]; !ok || n != 1 {
		t.Errorf("%d FDB events, and %v, want the one of the bridge", n, m.FDB)
	}
	// The socket's filter spares the reader the wake-ups.
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: br, Family: unix.AF_INET, IP: []byte{10, 0, 0, 2}, HardwareAddr: make([]byte, 6), State: netlink.NUD_PERMANENT}))
	if batches, _ := readAll(t, m); len(batches) != 0 {
		t.Errorf("ARP entries wake the reader: %+v", batches)
	}
}

func TestObservation(t *testing.T) {
	newNetns(t)
	br := addBridge(t, "br0")
	p := addTap(t, "vnet0")
	enslave(t, p.index, br)
	m := open(t, Options{})
	o := m.Observation()
	if diff := cmp.Diff(state{Bridges: o.Bridges, Ports: o.Ports}, state{Bridges: m.Bridges, Ports: m.Ports}); diff != "" || len(o.Ports) != 1 {
		t.Errorf("observation (-observation +mirror):\n%s", diff)
	}
	clear(o.Ports)
	clear(o.Bridges)
	if len(m.Ports) != 1 || len(m.Bridges) != 1 {
		t.Error("an observation shares its maps with the mirror")
	}
}

func openFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var names []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			names = append(names, to)
		}
	}
	slices.Sort(names)
	return names
}

func TestClose(t *testing.T) {
	newNetns(t)
	before := openFiles(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for range 3 {
		m, err := Open(Options{})
		must(t, err)
		done := make(chan error)
		go func() {
			_, err := m.Receive()
			done <- err
		}()
		// Closing also works before Receive has begun to wait.
		runtime.Gosched()
		must(t, m.Close())
		select {
		case err := <-done:
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("Receive gives %v, want os.ErrClosed", err)
			}
		case <-time.After(deadline):
			t.Fatal("Receive does not return after Close")
		}
		if _, err := m.Receive(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Receive after Close gives %v, want os.ErrClosed", err)
		}
		if _, err := m.Resync(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Resync after Close gives %v, want os.ErrClosed", err)
		}
		if err := m.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a second Close gives %v, want os.ErrClosed", err)
		}
	}
	after := openFiles(t)
	// The poller opens its own files at its first use.
	before = slices.DeleteFunc(before, func(s string) bool { return s[0] != '/' && s[:6] == "anon_i" })
	after = slices.DeleteFunc(after, func(s string) bool { return s[0] != '/' && s[:6] == "anon_i" })
	if len(before) != len(after) {
		t.Errorf("open files were %q, are %q", before, after)
	}
}

// Whatever happens to links and entries, the mirror ends up as a fresh one.
func TestRandomOperations(t *testing.T) {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("-seed %d", s)
	r := rand.New(rand.NewPCG(s, 0))
	newNetns(t)
	o := Options{Uplinks: []string{"v2"}}
	f := follow(t, o)
	const steps = 400
	for step := range steps {
		randomOperation(t, r)
		if step%100 == 99 {
			f.wantFresh()
		}
		if t.Failed() {
			return
		}
	}
	if len(f.Bridges) == 0 && len(f.Ports) == 0 {
		t.Log("the last state has no bridges")
	}
}

// randomOperation does something that may fail, as what it needs may not be
// there.
func randomOperation(t *testing.T, r *rand.Rand) {
	bridge := fmt.Sprintf("br%d", r.IntN(3))
	port := fmt.Sprintf("v%d", r.IntN(6))
	index := func(name string) int {
		if l, err := netlink.LinkByName(name); err == nil {
			return l.Attrs().Index
		}
		return 0
	}
	link := func(name string) netlink.Link {
		return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index(name)}}
	}
	address := mac(r.IntN(20))
	switch r.IntN(20) {
	case 0, 1:
		if netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs(bridge)}) == nil {
			_ = netlink.LinkSetUp(link(bridge))
		}
	case 2:
		if r.IntN(4) == 0 {
			_ = netlink.LinkDel(link(bridge))
		}
	case 3, 4:
		if netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs(port), PeerName: port + "p"}) == nil {
			_ = netlink.LinkSetUp(link(port))
			_ = netlink.LinkSetUp(link(port + "p"))
		}
	case 5:
		if r.IntN(4) == 0 {
			_ = netlink.LinkDel(link(port))
		}
	case 6, 7, 8:
		_ = netlink.LinkSetMasterByIndex(link(port), index(bridge))
	case 9:
		_ = netlink.LinkSetNoMaster(link(port))
	case 10, 11, 12, 13:
		state := []int{netlink.NUD_REACHABLE, netlink.NUD_REACHABLE, netlink.NUD_NOARP, netlink.NUD_PERMANENT}[r.IntN(4)]
		flags := []int{0, 0, 0, netlink.NTF_EXT_LEARNED, netlink.NTF_USE}[r.IntN(5)]
		_ = netlink.NeighSet(neigh(index(port), address, 0, state, flags))
	case 14:
		_ = netlink.NeighDel(neigh(index(port), address, 0, 0, 0))
	case 15:
		_ = netlink.LinkSetDown(link([]string{bridge, port, port + "p"}[r.IntN(3)]))
	case 16:
		_ = netlink.LinkSetUp(link([]string{bridge, port, port + "p"}[r.IntN(3)]))
	case 17:
		attr := []int{nl.IFLA_BRPORT_ISOLATED, nl.IFLA_BRPORT_LEARNING, nl.IFLA_BRPORT_FLUSH, nl.IFLA_BRPORT_LOCKED}[r.IntN(4)]
		if l, err := netlink.LinkByName(port); err == nil && l.Attrs().MasterIndex != 0 {
			setPort(t, l.Attrs().Index, attr, []byte{byte(r.IntN(2))})
		}
	case 18:
		if i := index(bridge); i != 0 {
			switch r.IntN(3) {
			case 0:
				setBridge(t, i, nl.IFLA_BR_AGEING_TIME, uint32(10000+r.IntN(9)*1000))
			case 1:
				_ = trySetBridge(i, nl.IFLA_BR_VLAN_FILTERING, []byte{byte(r.IntN(2))})
			case 2:
				_ = netlink.SetPromiscOn(link(bridge))
			}
		}
	case 19:
		// Names go round; a device must be down to be renamed on old kernels.
		other := fmt.Sprintf("v%d", r.IntN(6))
		_ = netlink.LinkSetName(link(port), other)
	}
}

// BenchmarkResync reads a full table again. held-B is the memory that a mirror
// of it holds.
func BenchmarkResync(b *testing.B) {
	const n = 32768
	_, taps, _ := forwarding(b, 1)
	p := taps[0]
	addEntries(b, p.index, n)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	m := open(b, Options{})
	held := heap() - before
	b.ReportAllocs()
	// As in the daemon, not on the thread that the test has locked, where each
	// switch to another goroutine costs a switch of threads.
	done := make(chan error)
	go func() {
		var err error
		for b.Loop() && err == nil {
			_, err = m.Resync()
		}
		done <- err
	}()
	must(b, <-done)
	b.ReportMetric(float64(held), "held-B")
	if len(m.FDB) < n {
		b.Fatalf("%d entries, want at least %d", len(m.FDB), n)
	}
}
