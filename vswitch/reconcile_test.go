package vswitch_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/datapathtest"
)

type fdb map[vswitch.FDBKey]vswitch.FDBEntry

// entries makes learned entries 02:00:00:00:00:n on the given ports of br0.
func entries(ports map[byte]int) fdb {
	f := fdb{}
	for n, p := range ports {
		k := vswitch.FDBKey{Bridge: br0, MAC: vswitch.MAC{2, 0, 0, 0, 0, n}}
		f[k] = vswitch.FDBEntry{FDBKey: k, Port: p}
	}
	return f
}

func reconcile(t *testing.T, dp vswitch.Datapath, o *vswitch.Observation, f fdb) vswitch.Plan {
	t.Helper()
	plan, _, err := vswitch.Reconcile(dp, o, f)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestReconcileOrder(t *testing.T) {
	dp := &datapathtest.Fake{}
	reconcile(t, dp, observe(), entries(map[byte]int{1: guest0, 2: uplink0}))
	dp.Calls = nil
	o := observe(port(uplink0, func(p *vswitch.Port) { p.Up = false }))
	delete(o.Ports, guest0)
	reconcile(t, dp, o, entries(map[byte]int{3: guest1}))
	want := []string{
		"delete port 20", // takes …:01 along
		"set port 10 in=false out=false attach=true",
		"delete 02:00:00:00:00:02",
		"set 02:00:00:00:00:03 to 21",
	}
	if diff := cmp.Diff(want, dp.Calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	dp.Calls = nil
	reconcile(t, dp, o, entries(map[byte]int{3: guest1}))
	if len(dp.Calls) > 0 {
		t.Errorf("nothing has changed, but the datapath was told %q", dp.Calls)
	}
}

func TestReconcileRefusal(t *testing.T) {
	foreign := vswitch.Hold(vswitch.HoldForeign, "somebody's program")
	tests := []struct {
		name   string
		refuse func(vswitch.PortConfig) error
		want   []vswitch.HoldCode // nil: the port is not in the plan
		gone   bool               // and that is no error
	}{
		{"with a reason", func(c vswitch.PortConfig) error {
			if c.Attach {
				return fmt.Errorf("attaching: %w", &vswitch.HeldError{Reason: foreign})
			}
			return nil
		}, []vswitch.HoldCode{vswitch.HoldForeign}, false},
		{"without", func(c vswitch.PortConfig) error {
			if c.Attach {
				return errDriver
			}
			return nil
		}, []vswitch.HoldCode{vswitch.HoldFailed}, false},
		{"altogether", func(vswitch.PortConfig) error { return errDriver }, nil, false},
		{"because the device has gone", func(vswitch.PortConfig) error {
			return fmt.Errorf("setting port: %w", os.ErrNotExist)
		}, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dp := &datapathtest.Fake{Refuse: func(c vswitch.PortConfig) error {
				if c.Ifindex == guest0 {
					return tt.refuse(c)
				}
				return nil
			}}
			plan, _, err := vswitch.Reconcile(dp, observe(), entries(map[byte]int{1: guest0, 2: uplink0}))
			if (err != nil) != (tt.want == nil && !tt.gone) {
				t.Errorf("got error %v", err)
			}
			var codes []vswitch.HoldCode
			for _, h := range plan.Ports[guest0].Held {
				codes = append(codes, h.Code)
				if h.Code == vswitch.HoldFailed && !strings.Contains(h.Text, errDriver.Error()) {
					t.Errorf("reason %q does not tell the error", h.Text)
				}
			}
			if diff := cmp.Diff(tt.want, codes); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
			if c := dp.Ports()[guest0]; c.In || c.Out || c.Attach {
				t.Errorf("a refused port is open: %+v", c)
			}
			if c := dp.Ports()[uplink0]; !c.In || !c.Out {
				t.Errorf("another port suffers from it: %+v", c)
			}
			// Once the cause is gone, the next look repairs it.
			dp.Refuse = nil
			if plan := reconcile(t, dp, observe(), entries(map[byte]int{1: guest0})); plan.Ports[guest0].State() != "fast" {
				t.Errorf("port is %s after the cause has gone", plan.Ports[guest0].State())
			}
		})
	}
}

func TestReconcileFull(t *testing.T) {
	dp := &datapathtest.Fake{Capacity: 2}
	_, full, err := vswitch.Reconcile(dp, observe(), entries(map[byte]int{1: guest0, 2: guest0, 3: guest0, 4: uplink0}))
	if err != nil || full != 2 {
		t.Errorf("got %d without room and error %v, want 2 and none", full, err)
	}
}

// TestReconcileConverges applies random observations, one after the other, and
// compares with a datapath that saw only the last one; and random FDB events
// against a full look.
func TestReconcileConverges(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	ports := []int{uplink0, guest0, guest1, veth0}
	dp, f := &datapathtest.Fake{}, fdb{}
	for range 2000 {
		o := observe()
		for _, i := range ports {
			switch r.IntN(8) {
			case 0:
				delete(o.Ports, i)
			case 1:
				port(i, func(p *vswitch.Port) { p.Up = false })(o)
			case 2:
				port(i, func(p *vswitch.Port) { p.Bridge = br1 })(o)
			case 3:
				hold(i, vswitch.Hold(vswitch.HoldForeign, "x"))(o)
			}
		}
		plan := reconcile(t, dp, o, f)
		for range r.IntN(10) {
			k := vswitch.FDBKey{Bridge: 1 + r.IntN(2), MAC: vswitch.MAC{2, 0, 0, 0, 0, byte(r.IntN(8))}}
			e := vswitch.FDBEntry{FDBKey: k, Port: ports[r.IntN(len(ports))], Origin: vswitch.Origin(r.IntN(3))}
			if f[k] = e; r.IntN(3) == 0 {
				delete(f, k)
			}
			e, ok := f[k]
			if err := vswitch.ReconcileEntry(dp, plan, k, e, ok); err != nil {
				t.Fatal(err)
			}
		}
		fresh := &datapathtest.Fake{}
		reconcile(t, fresh, o, f)
		if diff := cmp.Diff(fresh.Ports(), dp.Ports(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("ports (-fresh +incremental):\n%s", diff)
		}
		if diff := cmp.Diff(maps.Collect(fresh.FDB()), maps.Collect(dp.FDB()), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("FDB (-fresh +incremental):\n%s", diff)
		}
	}
}

func TestDiff(t *testing.T) {
	plan := vswitch.NewPlan(observe())
	have := map[int]vswitch.PortConfig{
		99:     {Ifindex: 99},
		guest0: plan.Ports[guest0].Config,
		guest1: {Ifindex: guest1},
	}
	var got []int
	for _, c := range plan.Diff(have) {
		got = append(got, c.Ifindex)
	}
	if want := []int{99, uplink0, guest1, veth0}; !slices.Equal(got, want) {
		t.Errorf("got changes of %v, want %v: deletions first, equal ones not at all", got, want)
	}
}
