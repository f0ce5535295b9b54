package main

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// flood sends from random addresses, each time another, at a rate per second, to
// an address behind the same tap: the bridge learns all, and sends nothing on.
func flood(t *testing.T, tap *lab.Tap, station net.HardwareAddr, addresses, rate int) (took time.Duration) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	f := frame(station, station, "who am I?")
	const burst = 100
	began := time.Now()
	for sent := 0; sent < addresses; sent++ {
		binary.BigEndian.PutUint64(f[4:], r.Uint64()) // over the end of the destination too
		copy(f[:6], station)
		f[6] = f[6]&^1 | 2
		if _, err := tap.Write(f); err != nil {
			t.Fatal(err)
		}
		if due := time.Duration(sent) * time.Second / time.Duration(rate); sent%burst == 0 && time.Since(began) < due {
			time.Sleep(due - time.Since(began))
		}
	}
	return time.Since(began)
}

// cpu gives the time that the daemon has run.
func (h *host) cpu(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(h.PID()) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndex(string(text), ")"):]))
	var ticks int
	for _, f := range fields[12:14] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// fast says whether the datapath has an address.
func (h *host) fast(t *testing.T, mac string) bool {
	t.Helper()
	want, err := vswitch.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	all, err := h.api.FDB(t.Context(), control.FDBFilter{MAC: want})
	if err != nil {
		t.Fatal(err)
	}
	return len(all) == 1 && all[0].Fast
}

// A guest that sends from a million addresses has no other guest pay for it.
func TestFloodOfSources(t *testing.T) {
	const (
		addresses = 1_000_000
		rate      = 100_000
		mostRSS   = 40 << 20
	)
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{})
	flooder := h.sink(t, "vnet9", 1, lab.TapOptions{})
	down := stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 1000})
	across := stream(t, h.Guests[0].Node, h.Guests[1].Node, lab.StreamOptions{Rate: 1000})
	h.awaitRedirects(t, lab.NIC, down)
	h.awaitRedirects(t, "vnet0", across)
	before := map[string]map[vswitch.Verdict]uint64{lab.NIC: h.verdicts(t, lab.NIC), "vnet0": h.verdicts(t, "vnet0")}
	cpu := h.cpu(t)
	took := flood(t, flooder, stationMAC(1), addresses, rate)
	cpu = h.cpu(t) - cpu
	t.Logf("%d addresses in %v; the daemon ran for %v", addresses, took.Round(time.Millisecond), cpu)
	began := time.Now()
	p := h.port(t, "vnet9")
	t.Logf("ports answered within %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	h.awaitPort(t, 10*time.Second, "vnet9", "fast", "more than 1024 addresses are behind the port")
	t.Logf("shown %v later; refused %d", time.Since(began).Round(time.Millisecond), p.FDBRefused)

	// Another port gets a new address, while the table is full.
	h.sink(t, "vnet8", 8, lab.TapOptions{})
	began = time.Now()
	eventually(t, 10*time.Second, "a new guest's address is in the datapath", func() bool { return h.fast(t, stationMAC(8).String()) })
	t.Logf("a new guest's address is in the datapath after %v", time.Since(began).Round(time.Millisecond))

	st, err := h.api.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// On a busy machine the kernel may have to drop events, which nobody counts then.
	if st.FDB.Refused == 0 || st.FDB.Entries > 2000 || st.FDB.Full > 0 {
		t.Errorf("status shows the FDB as %+v", st.FDB)
	}
	if rss := h.resident(t); rss > mostRSS {
		t.Errorf("%.1f MiB are resident, want at most %d", float64(rss)/(1<<20), mostRSS>>20)
	} else {
		t.Logf("%.1f MiB are resident", float64(rss)/(1<<20))
	}
	for port, was := range before {
		now := h.verdicts(t, port)
		for _, v := range []vswitch.Verdict{vswitch.PassExpired, vswitch.PassLearn, vswitch.PassUnknown} {
			if n := now[v] - was[v]; n > 0 {
				t.Errorf("%d frames from %s: %s", n, port, v)
			}
		}
		t.Logf("from %s: %d redirected", port, now[vswitch.Redirected]-was[vswitch.Redirected])
	}
	whole(t, "wire to guest", down)
	whole(t, "guest to guest", across)
}

// A source that the bridge has not learned on the very port never gets in by the
// fast path, whoever's address it is.
func TestUnknownSourceNeverTakesTheFastPath(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: longLease})
	tap := h.sink(t, "vnet9", 1, lab.TapOptions{})
	ping(t, h.Wire, h.Guests[0].Node) // the bridge knows wire and guest
	h.checkFast(t, h.Wire, h.Guests[0].Node, lab.NIC, "vnet0")
	h.bridge(t, "fdb replace "+h.Guests[0].MAC.String()+" dev vnet0 master static sticky")
	const sent = 500
	for i := range sent {
		from := stationMAC(1000 + i) // each once
		if i%2 == 0 {
			from = h.Guests[0].MAC // which sticks to its port
		}
		if _, err := tap.Write(frame(lab.WireMAC, from, "let me in")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 10*time.Second, "all frames have met a verdict", func() bool {
		return h.count(t, "vnet9", vswitch.PassLearn) == sent
	})
	if n := h.count(t, "vnet9", vswitch.Redirected); n != 0 {
		t.Errorf("%d of %d frames were redirected", n, sent)
	}
}
