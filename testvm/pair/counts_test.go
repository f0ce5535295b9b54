// Package pair sends frames through host and guest: from a NIC by XDP into a tap, and
// there through native XDP of a real guest's virtio_net, and counts each on its way.
package pair

import (
	"flag"
	"fmt"
	"maps"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tapswitch/tapswitch/testvm/kernel"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/qemu"
)

var (
	names  = flag.String("kernels", qemu.DefaultKernel, `names of the kernels to test, separated by commas, or "all"; make test-kernels sets it`)
	frames = flag.Int("frames", 5000, "how many frames each flow has")
)

const (
	ruleFile = "/rules"
	ruleText = "drop proto udp dport 9\n"
	dropped  = 9
	others   = 7
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestCounts has each program of the guest meet frames that the host's fast path
// carries both ways. No frame may be lost, doubled, changed or counted wrongly.
func TestCounts(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	qemu.Need(t)
	list := strings.Split(*names, ",")
	if *names == "all" {
		list = kernel.Names()
	}
	for _, name := range list {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, name)
			t.Run("one queue", func(t *testing.T) { r.with(t).counts(0) })
			t.Run(fmt.Sprintf("%d queues", many), func(t *testing.T) { r.with(t).counts(offset) })
		})
	}
}

func (r *rig) with(t *testing.T) *rig {
	c := *r
	c.T = t
	return &c
}

// counts tests the programs on the guest's NICs i and i+1.
func (r *rig) counts(i int) {
	near, far := i, i+1
	r.place(lab.NIC, lab.WireMAC)
	r.place(tap(near), guestMAC(near))
	r.Run("drop", func(t *testing.T) {
		r := r.with(t)
		r.inside("/bin/tapswitch-guest", "attach", "drop", eth(near), "--rules", ruleFile)
		defer r.detach(near)
		in := flow{lab.NIC, lab.WireMAC, guestMAC(near), dropped, *frames}
		r.whole(map[string]int{lab.NIC: *frames + *frames/10}, func() error {
			if err := r.swallow(r.within(), in, tap(near)); err != nil {
				return err
			}
			in.port, in.frames = others, *frames/10
			return r.swallow(r.within(), in, tap(near))
		})
		r.wantCounted(near, map[string]uint64{"drop": uint64(*frames), "pass": uint64(*frames / 10)})
	})
	r.Run("reflect", func(t *testing.T) {
		r := r.with(t)
		r.inside("/bin/tapswitch-guest", "attach", "reflect", eth(near))
		defer r.detach(near)
		in := flow{lab.NIC, lab.WireMAC, guestMAC(near), others, *frames}
		r.whole(map[string]int{lab.NIC: *frames, tap(near): *frames}, func() error {
			return r.deliver(r.within(), in, arrival{lab.NIC, guestMAC(near), lab.WireMAC})
		})
		r.wantCounted(near, map[string]uint64{"reflect": uint64(*frames)})
	})
	r.Run("l2fwd", func(t *testing.T) {
		r := r.with(t)
		// The guest joins the bridges: either station is behind it for the other.
		r.place(tap(near), farMAC)
		r.place(farNIC, farMAC)
		r.place(tap(far), lab.WireMAC)
		r.inside("/bin/tapswitch-guest", "attach", "l2fwd", eth(near), "--to", eth(far))
		defer r.detach(near)
		r.whole(map[string]int{lab.NIC: *frames, farNIC: *frames, tap(near): *frames, tap(far): *frames}, func() error {
			var ways errgroup.Group
			ways.Go(func() error {
				return r.deliver(r.within(), flow{lab.NIC, lab.WireMAC, farMAC, others, *frames}, arrival{farNIC, lab.WireMAC, farMAC})
			})
			ways.Go(func() error {
				return r.deliver(r.within(), flow{farNIC, farMAC, lab.WireMAC, others, *frames}, arrival{lab.NIC, farMAC, lab.WireMAC})
			})
			return ways.Wait()
		})
		r.wantCounted(near, map[string]uint64{"forward": uint64(*frames)})
		r.wantCounted(far, map[string]uint64{"forward": uint64(*frames)})
	})
}

func (r *rig) detach(i int) {
	r.Helper()
	r.inside("/bin/tapswitch-guest", "detach", eth(i))
}

// whole does something, during which each of these ports must have so many frames
// redirected, and nothing may be lost.
func (r *rig) whole(redirected map[string]int, do func() error) {
	r.Helper()
	lost, before := r.lost(), map[string]uint64{}
	for port := range redirected {
		before[port] = r.redirected(port)
	}
	if err := do(); err != nil {
		r.Errorf("%v\n%s%s", err, r.inside("/bin/tapswitch-guest", "stats"), r.inside("ip", "-s", "link"))
	}
	for port, want := range redirected {
		if n := r.redirected(port) - before[port]; n != uint64(want) {
			r.Errorf("%d frames of %s were redirected, want %d", n, port, want)
		}
	}
	if n := r.lost() - lost; n > 0 {
		r.Errorf("%d frames were lost in the host", n)
	}
}

// wantCounted waits until the guest has counted so many frames, and no others.
func (r *rig) wantCounted(i int, want map[string]uint64) {
	r.Helper()
	var have map[string]uint64
	total := func(m map[string]uint64) (n uint64) {
		for _, v := range m {
			n += v
		}
		return n
	}
	r.eventually(fmt.Sprintf("%s has counted %v", eth(i), want), func() bool {
		have = r.counted(eth(i))
		return total(have) >= total(want)
	})
	if !maps.Equal(have, want) {
		r.Errorf("%s has counted %v, want %v", eth(i), have, want)
	}
}
