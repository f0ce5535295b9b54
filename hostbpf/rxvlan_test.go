package hostbpf

import (
	"testing"

	"github.com/safchain/ethtool"

	"github.com/tapswitch/tapswitch/vswitch"
)

// TestD6TagsAreShown: what hides tags is switched off where that is allowed, and put
// back at the end, also by a process that did not switch it off itself.
func TestD6TagsAreShown(t *testing.T) {
	const dir = "/sys/fs/bpf/showtags"
	nic, beside, bond := veth(t, "nic0"), veth(t, "nic1"), veth(t, "bond0")
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	states := func() (got [2]bool) {
		for i, name := range []string{"nic0", "nic1"} {
			features, err := e.Features(name)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = len(hiding(features)) > 0
		}
		return got
	}
	if got := states(); got != [2]bool{true, true} {
		t.Fatalf("hidden are %v before the test, want both", got)
	}
	d := open(t, dir)
	// nic0 below a VLAN device, nic1 as one of a bond's.
	ports := map[int]vswitch.Port{
		veth(t, "vlan7"): {Role: vswitch.RoleUplink, Kind: "vlan", Carrier: carriedBy(nic, tpidQ, 7)},
		bond:             {Role: vswitch.RoleUplink, Kind: "bond", Carrier: carriedBy(beside, 0, 0)},
	}
	reasons := func() (n int) {
		t.Helper()
		found, err := d.Holds(ports)
		if err != nil {
			t.Fatal(err)
		}
		for _, held := range found {
			n += len(held)
		}
		return n
	}
	if n := reasons(); n != 2 || states() != [2]bool{true, true} {
		t.Errorf("not allowed: %d reasons and hidden %v, want 2 and both", n, states())
	}
	d.ShowTags(Devices{Names: []string{"nic0"}}, nil)
	if n := reasons(); n != 1 || states() != [2]bool{false, true} {
		t.Errorf("nic0 allowed: %d reasons and hidden %v, want 1 and the other", n, states())
	}
	d.ShowTags(Devices{All: true}, nil)
	if n := reasons(); n != 0 || states() != [2]bool{false, false} {
		t.Errorf("all allowed: %d reasons and hidden %v, want none", n, states())
	}
	if err := d.Close(true); err != nil {
		t.Fatal(err)
	}
	if got := states(); got != [2]bool{false, false} {
		t.Errorf("hidden are %v beside a datapath that is kept, want none", got)
	}
	if err := open(t, dir).Close(false); err != nil {
		t.Fatal(err)
	}
	if got := states(); got != [2]bool{true, true} {
		t.Errorf("hidden are %v in the end, want both as before", got)
	}
}

// A driver that keeps the offload is told once.
func TestD6DriverKeepsTags(t *testing.T) {
	d := openFresh(t)
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	nic := veth(t, "nic0")
	// Of a veth everything can be switched: another device's name stands for refusal.
	for range 2 {
		if err := d.showTags(e, nic, "nosuch", hidingFeatures); err == nil || !d.stuck[nic] {
			t.Errorf("got %v, want that it can't be switched off, and a note of that", err)
		}
	}
}
