package vswitch_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tapswitch/tapswitch/vswitch"
)

func TestVLANSet(t *testing.T) {
	var set vswitch.VLANSet
	model := map[vswitch.VLAN]bool{} // member → untagged
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		v := vswitch.VLAN(r.IntN(vswitch.VLANs))
		if r.IntN(3) == 0 {
			set.Remove(v)
			delete(model, v)
		} else {
			model[v] = r.IntN(2) == 0
			set.Put(v, model[v])
		}
	}
	for v := range vswitch.VLAN(vswitch.VLANs) {
		member, untagged := set.Has(v)
		if want, in := model[v]; member != in || untagged != want {
			t.Errorf("VLAN %d: %t, %t, want %t, %t", v, member, untagged, in, want)
		}
	}
}

func TestVLANSetString(t *testing.T) {
	set := &vswitch.VLANSet{PVID: 1}
	put := func(first, last vswitch.VLAN, untagged bool) {
		for v := first; v <= last; v++ {
			set.Put(v, untagged)
		}
	}
	put(1, 2, true)
	put(10, 19, false)
	put(30, 30, true)
	put(4094, 4095, false)
	const want = "1 pvid untagged, 2 untagged, 10-19, 30 untagged, 4094-4095"
	if got := set.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := new(vswitch.VLANSet).String(); got != "" {
		t.Errorf("none is %q", got)
	}
}

func TestVLANSetLen(t *testing.T) {
	var set vswitch.VLANSet
	for n, v := range []vswitch.VLAN{1, 2, 31, 32, 4094} {
		set.Put(v, n%2 == 0)
		if got := set.Len(); got != n+1 {
			t.Errorf("after VLAN %d: %d VLANs, want %d", v, got, n+1)
		}
	}
}
