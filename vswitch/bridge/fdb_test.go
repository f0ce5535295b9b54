package bridge

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

func TestFDB(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := addBridge(t, "br0")
	p, q := addTap(t, "vnet0"), addTap(t, "vnet1")
	enslave(t, p.index, br)
	enslave(t, q.index, br)
	forwarding := func(p vswitch.Port) bool { return p.Up && p.STP == vswitch.STPForwarding }
	f.wantPort("the first tap forwards", p.index, forwarding)
	f.wantPort("the second tap forwards", q.index, forwarding)

	key := vswitch.FDBKey{Bridge: br, MAC: mac(1)}
	time.Sleep(300 * time.Millisecond) // Receive waits meanwhile
	sent := time.Now()
	p.send(t, mac(1))
	f.wantEntry("a frame's source is learned", key, p.index)
	if e := f.FDB[key]; e.Origin != vswitch.OriginLearned || e.Updated.Before(sent.Add(-100*time.Millisecond)) || e.Updated.After(time.Now()) {
		t.Errorf("learned entry is %+v, of a frame sent at %v", e, sent)
	}
	seen := f.fdb[key]
	q.send(t, mac(1))
	f.wantEntry("the station moves", key, q.index)
	if f.fdb[key] != seen+1 {
		t.Errorf("a move is reported %d times, want once", f.fdb[key]-seen)
	}

	for i, tc := range []struct {
		state, flags int
		origin       vswitch.Origin
	}{
		{netlink.NUD_NOARP, 0, vswitch.OriginStatic},
		{netlink.NUD_PERMANENT, 0, vswitch.OriginLocal},
		{netlink.NUD_NOARP, netlink.NTF_EXT_LEARNED, vswitch.OriginExtern},
		{netlink.NUD_REACHABLE, 0, vswitch.OriginLearned},
	} {
		k := vswitch.FDBKey{Bridge: br, MAC: mac(10 + i)}
		must(t, netlink.NeighSet(neigh(p.index, k.MAC, 0, tc.state, tc.flags)))
		f.wantEntry(fmt.Sprintf("a %v entry is there", tc.origin), k, p.index)
		if got := f.FDB[k].Origin; got != tc.origin {
			t.Errorf("origin of state %#x, flags %#x is %v, want %v", tc.state, tc.flags, got, tc.origin)
		}
	}
	f.wantFresh()

	// The origin may change in place.
	must(t, netlink.NeighSet(neigh(q.index, mac(1), 0, netlink.NUD_NOARP, 0)))
	f.wait("a learned entry becomes static", func() bool { return f.FDB[key].Origin == vswitch.OriginStatic })

	must(t, netlink.NeighDel(neigh(q.index, mac(1), 0, 0, 0)))
	f.wantEntry("an entry is deleted", key, 0)

	// The devices' own addresses are local.
	for _, index := range []int{p.index, q.index} {
		own := vswitch.FDBKey{Bridge: br, MAC: vswitch.MAC(byIndex(t, index).Attrs().HardwareAddr)}
		if e := f.FDB[own]; e.Origin != vswitch.OriginLocal || e.Destination() != vswitch.Host {
			t.Errorf("a port's own address is %+v, want local", e)
		}
	}

	// A port that goes down loses what it has learned, and keeps the rest.
	p.send(t, mac(2))
	f.wantEntry("another address is learned", vswitch.FDBKey{Bridge: br, MAC: mac(2)}, p.index)
	must(t, netlink.LinkSetDown(byIndex(t, p.index)))
	f.wantEntry("it is flushed", vswitch.FDBKey{Bridge: br, MAC: mac(2)}, 0)
	f.wantEntry("a static one is not", vswitch.FDBKey{Bridge: br, MAC: mac(10)}, p.index)
	f.wantFresh()

	must(t, netlink.LinkDel(byIndex(t, p.index)))
	f.wait("the port is gone", func() bool { _, ok := f.Ports[p.index]; return !ok })
	for _, e := range f.FDB {
		if e.Port == p.index {
			t.Errorf("entry %+v has outlived its port", e)
		}
	}
	f.wantFresh()
}

// With VLAN filtering there are entries per VLAN, and copies of local ones.
func TestFDBWithVLANs(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := awareBridge(t, "br0")
	p := addTap(t, "vnet0")
	enslave(t, p.index, br)
	must(t, netlink.BridgeVlanAdd(byIndex(t, p.index), 7, false, false, false, true))
	learn(t, p.index, mac(1), 7)
	f.wantEntry("an address is known in the VLAN", vswitch.FDBKey{Bridge: br, VLAN: 7, MAC: mac(1)}, p.index)
	own := vswitch.MAC(byIndex(t, p.index).Attrs().HardwareAddr)
	f.wantEntry("the port's own address has a copy", vswitch.FDBKey{Bridge: br, VLAN: 7, MAC: own}, p.index)
	f.wantPort("the port forwards", p.index, func(p vswitch.Port) bool { return p.Up })
	p.send(t, mac(2))
	f.wantEntry("a frame is learned in the PVID", vswitch.FDBKey{Bridge: br, VLAN: 1, MAC: mac(2)}, p.index)
	f.wantFresh()
	must(t, netlink.BridgeVlanDel(byIndex(t, p.index), 7, false, false, false, true))
	f.wantEntry("entries go with their VLAN", vswitch.FDBKey{Bridge: br, VLAN: 7, MAC: mac(1)}, 0)
	f.wantFresh()
}

// A message about an FDB entry, as the kernel would send it.
func entryMessage(port, bridge int, vlan uint16, mac vswitch.MAC, state uint16, flags byte) []byte {
	b := []byte{unix.AF_BRIDGE, 0, 0, 0}
	b = native.AppendUint32(b, uint32(port))
	b = native.AppendUint16(b, state)
	b = append(b, flags, 0)
	b = appendAttribute(b, netlink.NDA_LLADDR, mac[:])
	if bridge != 0 {
		b = appendAttribute(b, netlink.NDA_MASTER, native.AppendUint32(nil, uint32(bridge)))
	}
	info := make([]byte, 16)
	native.PutUint32(info[8:], 150)
	b = appendAttribute(b, netlink.NDA_CACHEINFO, info)
	if vlan != 0 {
		b = appendAttribute(b, netlink.NDA_VLAN, native.AppendUint16(nil, vlan))
	}
	return b
}

func TestParseEntry(t *testing.T) {
	now := time.Now()
	e, ok := parseEntry(entryMessage(3, 2, 7, mac(1), netlink.NUD_REACHABLE, 0), now)
	want := vswitch.FDBEntry{
		FDBKey: vswitch.FDBKey{Bridge: 2, VLAN: 7, MAC: mac(1)}, Port: 3, Origin: vswitch.OriginLearned,
		Updated: now.Add(-1500 * time.Millisecond),
	}
	if diff := cmp.Diff(want, e); !ok || diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	for what, b := range map[string][]byte{
		"a device's own": entryMessage(3, 2, 0, mac(1), netlink.NUD_PERMANENT, netlink.NTF_SELF),
		"no bridge's":    entryMessage(3, 0, 0, mac(1), netlink.NUD_PERMANENT, 0),
		"an IP":          append([]byte{unix.AF_INET}, make([]byte, 30)...),
		"cut short":      {unix.AF_BRIDGE},
	} {
		if e, ok := parseEntry(b, now); ok {
			t.Errorf("%s neighbour is taken for an entry: %+v", what, e)
		}
	}
}

// addEntries makes n learned entries in few system calls.
func addEntries(t testing.TB, port, n int) {
	t.Helper()
	c, err := dial()
	must(t, err)
	defer c.Close()
	entries := make([]vswitch.FDBEntry, n)
	for i := range entries {
		entries[i] = vswitch.FDBEntry{FDBKey: vswitch.FDBKey{MAC: mac(i)}, Port: port}
	}
	must(t, (&Mirror{requests: c}).use(entries))
}
