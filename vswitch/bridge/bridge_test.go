package bridge

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

func TestMain(m *testing.M) { lab.Main(m) }

// deadline bounds every wait for the kernel.
const deadline = 15 * time.Second

// newNetns puts the test into a network namespace of its own.
func newNetns(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	old, err := netns.Get()
	must(t, err)
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() {
		must(t, netns.Set(old))
		must(t, old.Close())
		must(t, ns.Close())
		runtime.UnlockOSThread()
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a mirror that nobody reads from.
func open(t testing.TB, o Options) *Mirror {
	t.Helper()
	m, err := Open(o)
	must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return m
}

// A follower keeps a mirror up to date.
type follower struct {
	*Mirror
	t       testing.TB
	batches chan Batch
	fdb     map[vswitch.FDBKey]int // how often each key was reported
	topo    int                    // how often the topology was
}

func follow(t testing.TB, o Options) *follower {
	t.Helper()
	m, err := Open(o)
	must(t, err)
	f := &follower{Mirror: m, t: t, batches: make(chan Batch, 64), fdb: map[vswitch.FDBKey]int{}}
	done, stop := make(chan error, 1), make(chan struct{})
	go func() {
		for {
			b, err := m.Receive()
			if err != nil {
				done <- err
				return
			}
			select {
			case f.batches <- b:
			case <-stop:
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		must(t, m.Close())
		if err := <-done; !errors.Is(err, os.ErrClosed) {
			t.Errorf("Receive after Close: %v, want os.ErrClosed", err)
		}
	})
	return f
}

func (f *follower) apply(b Batch) {
	f.t.Helper()
	c, err := f.Apply(b)
	must(f.t, err)
	if c.Topology {
		f.topo++
	}
	for _, k := range c.FDB {
		f.fdb[k]++
	}
	f.check()
}

// check checks what holds at any time.
func (f *follower) check() {
	f.t.Helper()
	checkInvariants(f.t, f.Mirror)
}

func checkInvariants(t testing.TB, m *Mirror) {
	t.Helper()
	entries := map[int]int{}
	for key, e := range m.FDB {
		entries[e.Port]++
		if m.links[e.Port] == nil {
			continue // its bridge is being made
		}
		if p := m.Ports[e.Port]; key != e.FDBKey || p.Bridge != key.Bridge && e.Port != key.Bridge {
			t.Errorf("entry %+v under key %+v does not lead to a port of its bridge", e, key)
		}
	}
	if diff := cmp.Diff(entries, m.entries); diff != "" {
		t.Errorf("entries per port (-counted +kept):\n%s", diff)
	}
	for _, p := range m.Ports {
		if _, ok := m.Bridges[p.Bridge]; !ok {
			t.Errorf("port %+v has no bridge", p)
		}
	}
}

// wait applies events until cond holds.
func (f *follower) wait(what string, cond func() bool) {
	f.t.Helper()
	late := time.After(deadline)
	for !cond() {
		select {
		case b := <-f.batches:
			f.apply(b)
		case <-late:
			f.t.Fatalf("waiting until %s: not within %v; ports %+v, fdb %+v", what, deadline, f.Ports, f.FDB)
		}
	}
}

// sync waits until all that the test has done so far has been applied.
func (f *follower) sync() {
	f.t.Helper()
	lo := byName(f.t, "lo")
	mtu := lo.Attrs().MTU ^ 1
	must(f.t, netlink.LinkSetMTU(lo, mtu))
	f.wait("the mark is seen", func() bool { return f.links[lo.Attrs().Index].mtu == mtu })
}

// wantPort waits until a port is as wanted.
func (f *follower) wantPort(what string, index int, ok func(vswitch.Port) bool) {
	f.t.Helper()
	f.wait(what, func() bool {
		p, there := f.Ports[index]
		return there && ok(p)
	})
}

// wantEntry waits until an address is behind a port; 0 stands for none.
func (f *follower) wantEntry(what string, key vswitch.FDBKey, port int) {
	f.t.Helper()
	f.wait(what, func() bool { return f.FDB[key].Port == port })
}

// A state is what two mirrors of the same bridges agree on.
type state struct {
	Bridges map[int]vswitch.Bridge
	Ports   map[int]vswitch.Port
	FDB     map[vswitch.FDBKey]vswitch.FDBEntry // without times
	Holds   map[int][]vswitch.HoldReason
}

func stateOf(m *Mirror) state {
	s := state{maps.Clone(m.Bridges), m.Ports, map[vswitch.FDBKey]vswitch.FDBEntry{}, m.Holds()}
	for i, br := range s.Bridges {
		if !br.Up {
			// The kernel tells of such changes only when the bridge comes up.
			br.Ageing, br.VLANFiltering, br.VLANProtocol = 0, false, 0
			s.Bridges[i] = br
		}
	}
	for k, e := range m.FDB {
		e.Updated = time.Time{}
		if e.Origin == vswitch.OriginLocal {
			e.Port = e.Bridge // the kernel doesn't tell that a port hands its address on
		}
		s.FDB[k] = e
	}
	return s
}

// fresh gives the state as the kernel has it now.
func fresh(t testing.TB, o Options) state {
	t.Helper()
	m, err := Open(o)
	must(t, err)
	defer m.Close()
	checkInvariants(t, m)
	return stateOf(m)
}

// wantFresh waits until the mirror equals a freshly opened one. The kernel
// makes some events later, such as those of a carrier.
func (f *follower) wantFresh() {
	f.t.Helper()
	late := time.After(deadline)
	for {
		f.sync()
		diff := cmp.Diff(fresh(f.t, f.options), stateOf(f.Mirror))
		if diff == "" {
			return
		}
		select {
		case b := <-f.batches:
			f.apply(b)
		case <-late:
			f.t.Fatalf("mirror differs from a fresh one (-fresh +mirror):\n%s", diff)
		}
	}
}

func addLink(t testing.TB, l netlink.Link) int {
	t.Helper()
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatalf("adding %s %s: %v", l.Type(), l.Attrs().Name, err)
	}
	must(t, netlink.LinkSetUp(l))
	return l.Attrs().Index
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// addBridge adds a bridge that gives its ports no VLAN, where the kernel has VLANs:
// entries would be made for those too.
func addBridge(t testing.TB, name string) int {
	t.Helper()
	index := addLink(t, &netlink.Bridge{LinkAttrs: attrs(name)})
	if err := trySetBridge(index, nl.IFLA_BR_VLAN_DEFAULT_PVID, nl.Uint16Attr(0)); !errors.Is(err, unix.EOPNOTSUPP) {
		must(t, err)
	}
	return index
}

// addVeth adds a pair, both up, and gives the first one's ifindex.
func addVeth(t testing.TB, name string) int {
	t.Helper()
	index := addLink(t, &netlink.Veth{LinkAttrs: attrs(name), PeerName: name + "p"})
	must(t, netlink.LinkSetUp(byName(t, name+"p")))
	return index
}

func byName(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

func byIndex(t testing.TB, index int) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByIndex(index)
	must(t, err)
	return l
}

func enslave(t testing.TB, port, bridge int) {
	t.Helper()
	must(t, netlink.LinkSetMasterByIndex(byIndex(t, port), bridge))
}

// A tap is one whose reader is the test.
type tap struct {
	index int
	fd    int
}

func addTap(t testing.TB, name string) tap {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	req, err := unix.NewIfreq(name)
	must(t, err)
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	must(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, req))
	l := byName(t, name)
	must(t, netlink.LinkSetUp(l))
	return tap{l.Attrs().Index, fd}
}

// send sends a broadcast frame from src, as a guest behind the tap would.
func (p tap) send(t testing.TB, src vswitch.MAC) {
	t.Helper()
	frame := make([]byte, 60)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(frame[6:], src[:])
	frame[12], frame[13] = 0x88, 0xb5 // an EtherType for experiments
	_, err := unix.Write(p.fd, frame)
	must(t, err)
}

// setPort sets one attribute of a bridge port.
func setPort(t testing.TB, index int, attr int, v []byte) {
	t.Helper()
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(attr, v)
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		t.Fatalf("setting attribute %d of port %d: %v", attr, index, err)
	}
}

// hasPort says whether the kernel has an attribute of bridge ports. It ignores one that
// it does not know.
func hasPort(t testing.TB, index int, attr int) bool {
	t.Helper()
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	must(t, err)
	attributes := answers[0][unix.SizeofIfInfomsg:]
	for _, typ := range []int{unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA, attr} {
		parsed, err := nl.ParseRouteAttrAsMap(attributes)
		must(t, err)
		a, ok := parsed[uint16(typ)]
		if !ok {
			return false
		}
		attributes = a.Value
	}
	return true
}

// setBridge sets one attribute of a bridge.
func setBridge(t testing.TB, index int, attr int, v uint32) {
	t.Helper()
	must(t, trySetBridge(index, attr, nl.Uint32Attr(v)))
}

// setBridge16 does the same with a short number, in the host's byte order.
func setBridge16(t testing.TB, index int, attr int, v uint16) {
	t.Helper()
	must(t, trySetBridge(index, attr, nl.Uint16Attr(v)))
}

// setVLANFiltering makes a bridge VLAN-aware, or not.
func setVLANFiltering(t testing.TB, index int, on uint8) {
	t.Helper()
	must(t, trySetBridge(index, nl.IFLA_BR_VLAN_FILTERING, []byte{on}))
}

func trySetBridge(index int, attr int, v []byte) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte(kindBridge))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(attr, v)
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("setting attribute %d of bridge %d: %w", attr, index, err)
	}
	return nil
}

// hasVLANFiltering switches VLAN filtering on, where the kernel has it.
func hasVLANFiltering(t testing.TB, bridge int) bool {
	t.Helper()
	err := trySetBridge(bridge, nl.IFLA_BR_VLAN_FILTERING, []byte{1})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Log("SKIPPED: VLAN filtering, which this kernel does not have")
		return false
	}
	must(t, err)
	return true
}

// neigh makes a bridge's FDB entry for the netlink package.
func neigh(port int, mac vswitch.MAC, vlan, state, flags int) *netlink.Neigh {
	return &netlink.Neigh{
		Family: unix.AF_BRIDGE, LinkIndex: port, HardwareAddr: mac[:], Vlan: vlan,
		State: state, Flags: netlink.NTF_MASTER | flags,
	}
}

// learn makes an entry like a learned one.
func learn(t testing.TB, port int, mac vswitch.MAC, vlan int) {
	t.Helper()
	must(t, netlink.NeighSet(neigh(port, mac, vlan, netlink.NUD_REACHABLE, 0)))
}

func mac(n int) vswitch.MAC {
	return vswitch.MAC{0x02, 0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// appendAttribute adds an attribute as another library writes it.
func appendAttribute(b []byte, typ int, v []byte) []byte {
	return append(b, nl.NewRtAttr(typ, v).Serialize()...)
}
