package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// An attachment is one of the datapath's pinned links on a device.
type attachment struct {
	link    link.ID
	program ebpf.ProgramID
}

// pinnedLinks gives the names of all pinned links, those of the loss counters
// too.
func (h *host) pinnedLinks(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(h.Pins, "v3", "links"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// attachments gives the links on devices, by the names of their pins.
func (h *host) attachments(t *testing.T) map[string]attachment {
	t.Helper()
	found := map[string]attachment{}
	for _, name := range h.pinnedLinks(t) {
		if !strings.Contains(name, "-") {
			continue
		}
		l, err := link.LoadPinnedLink(filepath.Join(h.Pins, "v3", "links", name), &ebpf.LoadPinOptions{})
		if err != nil {
			t.Fatal(err)
		}
		info, err := l.Info()
		l.Close()
		if err != nil {
			t.Fatal(err)
		}
		found[name] = attachment{info.ID, info.Program}
	}
	return found
}

// programsOn gives all XDP and tcx programs on the host's devices, anybody's,
// and the clsact qdiscs.
func (h *host) programsOn(t *testing.T) map[string][]ebpf.ProgramID {
	t.Helper()
	found := map[string][]ebpf.ProgramID{}
	err := h.Host.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			a := l.Attrs()
			if a.Xdp != nil && a.Xdp.Attached {
				found[a.Name+" xdp"] = append(found[a.Name+" xdp"], ebpf.ProgramID(a.Xdp.ProgId))
			}
			if tcHook() == "tcx" {
				result, err := link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: ebpf.AttachTCXIngress})
				if err != nil {
					return err
				}
				for _, p := range result.Programs {
					found[a.Name+" tcx"] = append(found[a.Name+" tcx"], p.ID)
				}
			}
			qdiscs, err := netlink.QdiscList(l)
			if err != nil {
				return err
			}
			for _, q := range qdiscs {
				if q.Type() == "clsact" {
					found[a.Name+" clsact"] = nil
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// checkNothingLeft checks that a daemon that was stopped has cleared away all
// that it made. Tests that attach programs of their own take them off before.
func (h *host) checkNothingLeft(t *testing.T) {
	t.Helper()
	for _, path := range []string{h.Pins, h.Socket} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there (%v)", path, err)
		}
	}
	for where, ids := range h.programsOn(t) {
		t.Errorf("on %s is still %v", where, ids)
	}
}
