package matrix

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// TestLimitedGuest: XDP would go past the qdisc that limits a guest, so frames to it
// take the tc way, which goes through.
func TestLimitedGuest(t *testing.T) {
	h := newHost(t, xdp, false, mtu, func(h *host) error {
		return h.do([]string{"tc qdisc add dev vnet1 root handle 7: tbf rate 1gbit burst 1mb limit 1mb"})
	})
	if p := h.port(t, receiver); p.State != control.StateFast || len(p.Held) != 1 || p.Held[0].Direction != vswitch.OutXDP {
		t.Errorf("%s is %s: %v, want it fast but for XDP out of it", p.Name, p.State, p.Held)
	}
	for _, from := range []string{sender, wire} {
		before, through := h.counts(t, from), h.queued(t)
		_, sent := h.send(t, way{from, receiver}, named(t, "complete UDPv4"), false)
		now := h.counts(t, from)
		n := uint64(sent)
		if diff := cmp.Diff(map[vswitch.Verdict]uint64{vswitch.PassEgressHeld: n}, since(now.first, before.first)); diff != "" {
			t.Errorf("from %s at XDP (-want +got):\n%s", from, diff)
		}
		if diff := cmp.Diff(map[vswitch.Verdict]uint64{vswitch.Redirected: n}, since(now.merged, before.merged)); diff != "" {
			t.Errorf("from %s at tc (-want +got):\n%s", from, diff)
		}
		if got := h.queued(t) - through; got < n {
			t.Errorf("%d of %d frames from %s went through the qdisc", got, n, from)
		}
	}
}

// queued is how many frames have gone through the receiver's qdisc.
func (h *host) queued(t *testing.T) uint64 {
	t.Helper()
	link, err := h.Host.Link(receiver)
	if err != nil {
		t.Fatal(err)
	}
	qdiscs, err := h.Host.Netlink().QdiscList(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qdiscs {
		if q.Type() == "tbf" {
			return uint64(q.Attrs().Statistics.Basic.Packets)
		}
	}
	t.Fatal("the qdisc is gone")
	return 0
}
