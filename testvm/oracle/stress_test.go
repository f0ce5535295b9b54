package oracle

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
)

var stress = flag.Duration("stress", 5*time.Second, "how long TestNothingWrongUnderChange lasts")

const (
	visitor     = 5    // the port whose tap comes and goes
	wanderers   = 3000 // addresses that are now on one, now on another of two ports
	visitorMACs = 16   // of each tap that was ever at the visitor's port
)

// wanderer gives an address that is only ever behind two ports.
func wanderer(i int) (m mac, ports [2]int) {
	ports = [2]int{i % visitor, (i + 1 + i/visitor%(visitor-1)) % visitor}
	m = mac{0x02, 'w'}
	binary.BigEndian.PutUint32(m[2:], uint32(i))
	return m, ports
}

// visitorMAC gives an address that is only ever behind the tap that was the
// visit'th at the visitor's port.
func visitorMAC(visit, i int) mac {
	return mac{0x02, 'v', byte(visit >> 16), byte(visit >> 8), byte(visit), byte(i)}
}

// A delivery says where frames have come out.
type delivery struct {
	mu    sync.Mutex
	right map[mac]map[int]int // frames by address and port
	wrong []string
}

// at gives what takes the frames that come out of a port, of which the visitor's
// has had visits taps.
func (d *delivery) at(number, visit int) func([]byte) {
	return func(f []byte) {
		to := destination(f)
		if len(f) < 2*ethLen || source(f)[1] != 'm' || to.group() {
			return
		}
		// The payload says it again, in case the fast path spoils the address.
		ok := mac(f[ethLen:ethLen+6]) == to
		switch to[1] {
		case 'w':
			_, ports := wanderer(int(binary.BigEndian.Uint32(to[2:])))
			ok = ok && slices.Contains(ports[:], number)
		case 'v':
			ok = ok && number == visitor && to == visitorMAC(visit, int(to[5]))
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if !ok {
			d.wrong = append(d.wrong, fmt.Sprintf("%s, visit %d: a frame to %s", specs[number].name, visit, to))
			return
		}
		if d.right[to] == nil {
			d.right[to] = map[int]int{}
		}
		d.right[to][number]++
	}
}

// TestNothingWrongUnderChange sends frames to addresses that are moved, deleted
// and added as fast as can be, and to taps that come and go. None may come out of
// a port at which its address has never been: neither while the daemon follows,
// nor because a place in one of the datapath's tables is used again.
func TestNothingWrongUnderChange(t *testing.T) {
	ctx := t.Context()
	h, err := newHost("fast", Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.noFlood = true
	f, err := startFastPath(ctx, h, daemonPath, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
		if err := h.close(); err != nil {
			t.Error(err)
		}
	}()
	d := &delivery{right: map[mac]map[int]int{}}
	for i, p := range h.ports {
		if err := h.setSetting(i, flood, false); err != nil {
			t.Fatal(err)
		}
		p.box.divert(d.at(i, 0))
		p.follow()
	}
	h.stack.box.divert(func([]byte) {})
	h.stack.follow()
	if err := f.awaitEntries(); err != nil {
		t.Fatal(err)
	}

	var visits atomic.Int64
	ctx, cancel := context.WithTimeout(ctx, *stress)
	defer cancel()
	var senders sync.WaitGroup
	for _, number := range []int{uplink, 1, 2} {
		senders.Go(func() {
			if err := sendToAll(ctx, h.ports[number], number, &visits); err != nil {
				t.Error(err)
			}
		})
	}
	where := map[int]int{} // port by wanderer
	changes := 0
	rng := rand.New(rand.NewPCG(drawSeed(t), 0))
	for ; ctx.Err() == nil; changes++ {
		if changes%500 == 499 {
			if err := visit(h, d, int(visits.Add(1))); err != nil {
				t.Fatal(err)
			}
		}
		i := rng.IntN(wanderers)
		m, ports := wanderer(i)
		if at, there := where[i]; there && rng.IntN(3) == 0 {
			err = h.deleteEntry(m, at, 0)
			delete(where, i)
		} else {
			where[i] = ports[rng.IntN(2)]
			err = h.setStatic(m, where[i], 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	senders.Wait()

	if err := f.awaitEntries(); err != nil {
		t.Fatal(err)
	}
	everywhere := func(int, int) bool { return true }
	if err := h.barrier(everywhere); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	delivered := 0
	for _, ports := range d.right {
		for _, n := range ports {
			delivered += n
		}
	}
	clear(d.right)
	d.mu.Unlock()
	for i := range wanderers {
		m, _ := wanderer(i)
		if err := sendTo(h.ports[1], 1, m); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 { // a veth's far end takes 256 frames at a time
			if err := h.barrier(everywhere); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := h.barrier(everywhere); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range wanderers {
		m, _ := wanderer(i)
		at, there := where[i]
		if got := d.right[m]; there && at != 1 && (got[at] != 1 || len(got) != 1) || (!there || at == 1) && len(got) != 0 {
			t.Errorf("at the end, a frame to %s came out of %v, want %d (%t)", m, got, at, there)
		}
	}
	if len(d.wrong) > 0 {
		t.Errorf("%d frames came out where they never could, such as at %s", len(d.wrong), d.wrong[0])
	}
	if visits.Load() == 0 {
		t.Error("no tap came and went")
	}
	redirected := uint64(0)
	for _, number := range []int{uplink, 1, 2} {
		v, err := f.read(t.Context(), number)
		if err != nil {
			t.Fatal(err)
		}
		redirected += v[vswitch.Redirected]
	}
	if redirected == 0 {
		t.Error("no frame was redirected")
	}
	t.Logf("%d changes, %d taps, %d frames delivered, %d redirected", changes, visits.Load(), delivered, redirected)
}

// visit takes the visitor's tap away and puts another in its place.
func visit(h *host, d *delivery, number int) error {
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	if err := h.unplug(ctx, visitor); err != nil {
		return err
	}
	if err := h.plug(visitor); err != nil {
		return err
	}
	h.ports[visitor].box.divert(d.at(visitor, number))
	h.ports[visitor].follow()
	for i := range visitorMACs {
		if err := h.setStatic(visitorMAC(number, i), visitor, 0); err != nil {
			return err
		}
	}
	return nil
}

// sendToAll sends frames to wanderers, and to the taps that have visited last.
func sendToAll(ctx context.Context, p *port, number int, visits *atomic.Int64) error {
	rng := rand.New(rand.NewPCG(uint64(number), 0))
	for ctx.Err() == nil {
		to, _ := wanderer(rng.IntN(wanderers))
		if rng.IntN(4) == 0 {
			to = visitorMAC(max(0, int(visits.Load())-rng.IntN(4)), rng.IntN(visitorMACs))
		}
		if err := sendTo(p, number, to); err != nil {
			return err
		}
	}
	return nil
}

func sendTo(p *port, from int, to mac) error {
	body := make([]byte, 46)
	copy(body, to[:])
	_, err := p.send(&[vnetLen]byte{}, ethernet(to, markMAC(from), 0x88b6, body))
	return err
}
