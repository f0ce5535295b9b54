package hostbpf

import (
	"testing"

	"github.com/tapswitch/tapswitch/vswitch"
)

// TestD6FramesTell: a NIC whose driver denies that it hides tags is found out by frames
// that tc meets and XDP does not, and by no others.
func TestD6FramesTell(t *testing.T) {
	b := newCarrierBed(t, "/sys/fs/bpf/tagprobe")
	defer b.Close(false)
	b.ShowTags(Devices{All: true}, nil)
	bed := &verdictBed{Datapath: b.Datapath}
	plain := frame(macGuest, macOutside, other, 60)
	port := vswitch.Port{Role: vswitch.RoleUplink, Kind: "vlan", Carrier: carriedBy(b.nic, tpidQ, 7)}
	beside := vswitch.Port{Role: vswitch.RoleUplink, Kind: "vlan", Carrier: carriedBy(b.nic, tpidAD, 8)}
	hidden := func() (n int) {
		t.Helper()
		ports := map[int]vswitch.Port{b.vlan: port, b.service: beside}
		if _, err := b.Holds(ports); err != nil { // either port may be looked at first
			t.Fatal(err)
		}
		found, err := b.Holds(ports)
		if err != nil {
			t.Fatal(err)
		}
		for _, held := range found {
			for _, r := range held {
				if r.Code == vswitch.HoldHiddenTags {
					n++
				}
			}
		}
		return n
	}
	tc := func(n int) {
		for range n {
			bed.run(t, hooksProgUplinkRx, b.vlan, plain, 0)
		}
	}
	tc(2 * blindAfter) // from before XDP was there, for all that the first look knows
	if n := hidden(); n != 0 {
		t.Errorf("at first: %d ports are held", n)
	}
	tc(blindAfter - 1)
	if n := hidden(); n != 0 {
		t.Errorf("after too few frames: %d ports are held", n)
	}
	b.expect(t, "XDP sees one", b.nic, tagged(plain, tag7), b.vlan, vswitch.Redirected, plain)
	tc(blindAfter)
	if n := hidden(); n != 0 {
		t.Errorf("XDP has seen tags: %d ports are held", n)
	}
	tc(blindAfter)
	if n := hidden(); n != 2 {
		t.Errorf("tc alone has met frames: %d ports are held, want both on the NIC", n)
	}
}
