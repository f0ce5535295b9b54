package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// An address that only the fast path sees lives on in the bridge while it is in
// use, and no longer.
func TestAgeing(t *testing.T) {
	// The daemon refreshes addresses at its ticks, four in a lease. A shorter lease
	// may end on a busy machine, and then the bridge sees the frames itself.
	const ageing, lease = 2 * time.Second, time.Second
	h := newHost(t, lab.Options{Guests: 2, AgeingTime: ageing}, lab.DaemonOptions{Config: labConfig + "\nlease = \"1s\""})
	g, third := h.Guests[0], h.Guests[1]
	ctx := within(t, 30*time.Second)
	// The guest speaks, and nothing else of its frames meets the bridge: no
	// multicast reports, no address resolution. The wire never answers.
	if err := g.SetSysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	neigh := []string{"neigh", "replace", lab.WireAddr4.String(), "lladdr", lab.WireMAC.String(), "dev", "eth0", "nud", "permanent"}
	if out, err := g.Command(ctx, "ip", neigh...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.bridge(t, "fdb replace "+lab.WireMAC.String()+" dev nic0 master static")
	flooded, err := lab.OpenPacket(third.Node, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer flooded.Close()

	const rate = 500
	s := stream(t, g.Node, h.Wire, lab.StreamOptions{Rate: rate})
	h.awaitRedirects(t, g.Port, s)
	flooded.Keep(func(f []byte) bool { return bytes.Equal(f[6:12], g.MAC) })
	before := h.verdicts(t, g.Port)
	if err := s.WaitReceived(ctx, uint64(3.25*ageing.Seconds()*rate)); err != nil {
		t.Fatal(err)
	}
	during := h.verdicts(t, g.Port)
	for v, n := range before {
		if during[v] -= n; during[v] == 0 {
			delete(during, v)
		}
	}
	if want := map[vswitch.Verdict]uint64{vswitch.Redirected: during[vswitch.Redirected]}; !cmp.Equal(during, want) {
		t.Errorf("verdicts over %v are %v, want all redirected", 3.25*ageing.Seconds(), during)
	}
	if n := len(flooded.Frames()); n > 0 {
		t.Errorf("the bridge flooded %d frames: it had forgotten an address in use", n)
	}
	whole(t, "guest to wire", s)

	// From now on the guest is silent, like a station on a bridge without guests,
	// which is none of the daemon's.
	silent := time.Now()
	plain := h.plainAgeing(t, ctx, ageing)
	if err := h.Host.WaitNoFDB(ctx, g.Port, g.MAC); err != nil {
		t.Fatal(err)
	}
	took := time.Since(silent)
	bridgeTook := <-plain
	late := took - bridgeTook
	t.Logf("a silent address was forgotten after %v, by a plain bridge after %v", took.Round(time.Millisecond), bridgeTook.Round(time.Millisecond))
	// The datapath notes four times a second that it has seen an address.
	if took < ageing-time.Second/4-50*time.Millisecond {
		t.Errorf("the address was forgotten %v too early", ageing-took)
	}
	// Up to a round and a tick of the daemon, and as long again until a busy
	// machine runs this test.
	if most := 2 * (vswitch.RefreshEvery(ageing) + lease/4); late > most {
		t.Errorf("the address was forgotten %v later than by a plain bridge, want at most %v", late, most)
	}
}

// plainAgeing gives how long a bridge without guests remembers a station that
// speaks now and never again.
func (h *host) plainAgeing(t *testing.T, ctx context.Context, ageing time.Duration) <-chan time.Duration {
	t.Helper()
	h.run(t, "ip", "link", "add", "plain", "type", "bridge", "forward_delay", "0", "ageing_time", "200")
	h.ip(t, "link add to-station type veth peer name station")
	h.ip(t, "link set to-station master plain")
	for _, dev := range []string{"plain", "to-station", "station"} {
		if err := h.Host.SetSysctl("net/ipv6/conf/"+dev+"/disable_ipv6", "1"); err != nil {
			t.Fatal(err)
		}
		if err := h.Host.SetUp(dev); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Host.WaitRunning(ctx, "plain"); err != nil {
		t.Fatal(err)
	}
	station, err := lab.OpenPacket(h.Host, "station")
	if err != nil {
		t.Fatal(err)
	}
	defer station.Close()
	if err := station.Send(frame(broadcast, stationMAC(1), "here I am")); err != nil {
		t.Fatal(err)
	}
	spoke := time.Now()
	if err := h.Host.WaitFDB(ctx, "to-station", stationMAC(1)); err != nil {
		t.Fatal(err)
	}
	took := make(chan time.Duration, 1)
	go func() {
		if err := h.Host.WaitNoFDB(ctx, "to-station", stationMAC(1)); err != nil {
			t.Error(err)
		}
		took <- time.Since(spoke)
	}()
	return took
}
