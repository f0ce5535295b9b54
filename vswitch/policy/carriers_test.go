package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/vswitch"
)

func TestCarriers(t *testing.T) {
	attrs := func(index int, name string, master, parent int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, Name: name, MasterIndex: master, ParentIndex: parent, NetNsID: -1}
	}
	away := attrs(9, "away.5", 1, 2)
	away.NetNsID = 3
	links := []netlink.Link{
		&netlink.Bridge{LinkAttrs: attrs(1, "br0", 0, 0)},
		&netlink.Device{LinkAttrs: attrs(2, "eth0", 4, 0)},
		&netlink.Device{LinkAttrs: attrs(3, "eth1", 4, 0)},
		&netlink.Bond{LinkAttrs: attrs(4, "bond0", 1, 0)},
		&netlink.Vlan{LinkAttrs: attrs(5, "bond0.7", 1, 4)},
		&netlink.Vlan{LinkAttrs: attrs(6, "inner", 1, 5)},
		&netlink.Veth{LinkAttrs: attrs(7, "veth0", 1, 8)}, // its peer is no device below
		&netlink.Veth{LinkAttrs: attrs(8, "veth1", 0, 7)},
		&netlink.Vlan{LinkAttrs: away}, // over a device of another namespace
	}
	ports := map[int]vswitch.Port{4: {}, 5: {}, 6: {}, 7: {}, 9: {}, 77: {}}
	want := map[string][]int{"eth0": {4, 5, 6}, "eth1": {4, 5, 6}, "bond0": {5, 6}, "bond0.7": {6}}
	if d := cmp.Diff(want, carriers(links, ports), cmpopts.SortSlices(func(a, b int) bool { return a < b })); d != "" {
		t.Errorf("carriers (-want +got):\n%s", d)
	}
}
