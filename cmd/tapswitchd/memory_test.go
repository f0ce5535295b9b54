package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A full host: every guest's port, and as many addresses as there are to be.
func TestMemory(t *testing.T) {
	const (
		ports   = 256
		entries = 32768
		mostRSS = 40 << 20
		mostMap = 16 << 20
	)
	h := newLab(t, lab.Options{})
	names := []string{lab.NIC}
	for i := range ports - 1 {
		name := fmt.Sprintf("vnet%d", i)
		tap, err := lab.OpenTap(h.Host, name, lab.TapOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tap.Close() })
		h.setGroup(t, name)
		if err := h.Plug(name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	h.start(t, lab.DaemonOptions{})
	h.await(t, 20*time.Second, "all ports are fast", func() bool {
		st, err := h.api.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(st.Bridges) == 1 && st.Bridges[0].Fast == ports
	})
	h.addEntries(t, 0, entries, names...)
	ctx := within(t, 30*time.Second)
	eventually(t, 20*time.Second, "all entries are in the datapath", func() bool {
		st, err := h.api.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return st.FDB.Entries >= entries && st.FDB.Full == 0
	})
	for range 3 {
		shown, err := h.api.FDB(ctx, control.FDBFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if len(shown) < entries {
			t.Errorf("%d entries are shown, want %d", len(shown), entries)
		}
		if _, err := h.api.Ports(ctx); err != nil {
			t.Fatal(err)
		}
		h.metrics(t)
	}
	if rss := h.resident(t); rss > mostRSS {
		t.Errorf("%.1f MiB are resident, want at most %d", float64(rss)/(1<<20), mostRSS>>20)
	} else {
		t.Logf("%.1f MiB are resident", float64(rss)/(1<<20))
	}
	if size := h.mapBytes(t); size > mostMap {
		t.Errorf("the maps take %.1f MiB, want at most %d", float64(size)/(1<<20), mostMap>>20)
	} else {
		t.Logf("the maps take %.1f MiB", float64(size)/(1<<20))
	}
	h.stop(t)
	h.ip(t, fmt.Sprintf("link del group %d", tapGroup))
}

// tapGroup is a group of devices, which the kernel removes at once and so in much
// less time than one by one.
const tapGroup = 7

func (h *host) setGroup(t *testing.T, dev string) {
	t.Helper()
	l, err := h.Host.Link(dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Host.Netlink().LinkSetGroup(l, tapGroup); err != nil {
		t.Fatal(err)
	}
}

// mapBytes gives the memory of the daemon's BPF maps, as the kernel accounts it.
func (h *host) mapBytes(t *testing.T) (sum int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", h.PID()))
	if err != nil {
		t.Fatal(err)
	}
	maps := map[int]int{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // of a connection that has just ended
		}
		id, size := 0, 0
		for line := range strings.Lines(string(text)) {
			fmt.Sscanf(line, "map_id: %d", &id)
			fmt.Sscanf(line, "memlock: %d", &size)
		}
		if id != 0 {
			maps[id] = size
		}
	}
	if len(maps) < 8 {
		t.Fatalf("the daemon has %d maps", len(maps))
	}
	for _, size := range maps {
		sum += size
	}
	return sum
}
