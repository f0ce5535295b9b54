package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// Guests come and go for months: nothing may be left of any.
func TestLeaks(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: shortLease})
	h.comeAndGo(t, 20) // until pools and the heap have their size
	before := h.settled(t)
	h.comeAndGo(t, 50)
	if now := h.settled(t); now.files != before.files {
		t.Errorf("after 50 taps the daemon has %d open files, had %d", now.files, before.files)
	}
	h.comeAndGo(t, 150)
	h.checkConsistent(t)
	after := h.settled(t)
	t.Logf("before 200 taps: %+v; after: %+v", before, after)
	if after.pins != before.pins || after.files != before.files || after.entries != before.entries {
		t.Errorf("after 200 taps the daemon holds %+v, held %+v", after, before)
	}
	if after.goroutines > before.goroutines+2 { // those that serve requests come and go
		t.Errorf("after 200 taps there are %d goroutines, were %d", after.goroutines, before.goroutines)
	}
	if after.resident > before.resident+4<<20 {
		t.Errorf("after 200 taps %d KiB are resident, were %d", after.resident>>10, before.resident>>10)
	}
}

// comeAndGo makes taps ports of the bridge and removes them again, ten at a time
// and always under the same names, until there were n.
func (h *host) comeAndGo(t *testing.T, n int) {
	t.Helper()
	const group = 10
	for range n / group {
		var taps []*lab.Tap
		for i := range group {
			name := fmt.Sprintf("vnet%d", 100+i)
			tap, err := lab.OpenTap(h.Host, name, lab.TapOptions{})
			if err != nil {
				t.Fatal(err)
			}
			taps = append(taps, tap)
			if err := h.Plug(name); err != nil {
				t.Fatal(err)
			}
			h.awaitFast(t, name)
			// An address of its own, which goes with it.
			if _, err := tap.Write(frame(lab.WireMAC, stationMAC(i), "here I am")); err != nil {
				t.Fatal(err)
			}
			if err := h.Host.WaitFDB(within(t, 5*time.Second), name, stationMAC(i)); err != nil {
				t.Fatal(err)
			}
		}
		var closing sync.WaitGroup
		for _, tap := range taps {
			closing.Go(func() { tap.Close() })
		}
		closing.Wait()
		h.await(t, 5*time.Second, "the taps are gone", func() bool {
			ports, err := h.api.Ports(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(ports) == 2
		})
	}
}

// settled gives what the daemon holds once no program can be looking any more at
// what it has removed.
func (h *host) settled(t *testing.T) holdings {
	t.Helper()
	eventually(t, 5*time.Second, "the slots of removed ports are free", func() bool { return h.slotsInUse(t) == 2 })
	return h.holdings(t)
}

// holdings are what a daemon could leak.
type holdings struct {
	pins, files, entries, goroutines int
	resident                         int // bytes
}

func (h *host) holdings(t *testing.T) holdings {
	t.Helper()
	st, err := h.api.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// With the connections of this process's requests: these are always as many.
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return holdings{
		pins: len(h.pinnedLinks(t)), files: len(files), entries: st.FDB.Entries,
		goroutines: int(h.metric(t, "go_goroutines")), resident: h.resident(t),
	}
}

// slotsInUse counts the ports in the datapath's table, those included that are
// no longer but may be looked at still.
func (h *host) slotsInUse(t *testing.T) (n int) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(h.Pins, "v3/maps/ports"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var (
		slot uint32
		port = make([]byte, m.ValueSize())
		iter = m.Iterate()
	)
	for iter.Next(&slot, &port) {
		if binary.NativeEndian.Uint32(port) != 0 { // its ifindex
			n++
		}
	}
	if err := iter.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// resident gives the daemon's resident memory in bytes.
func (h *host) resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatal("no VmRSS in the daemon's status")
	return 0
}

// metrics scrapes the daemon by its control socket.
func (h *host) metrics(t *testing.T) string {
	t.Helper()
	conn, err := net.Dial("unix", h.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://tapswitchd/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("scraping: %s, %v\n%s", resp.Status, err, text)
	}
	return string(text)
}

// metric gives the value of a metric that has no labels, or of one with the
// labels that are written behind its name.
func (h *host) metric(t *testing.T, name string) float64 {
	t.Helper()
	for line := range strings.Lines(h.metrics(t)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
