package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

// checkConsistent checks that the datapath is attached to exactly those ports
// which are said to be, and has exactly the entries of the kernel's bridges.
func (h *host) checkConsistent(t *testing.T) {
	t.Helper()
	ports, err := h.api.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	attached, programs, others := map[string]bool{}, 0, 0
	// A filter of clsact is not pinned.
	pin := func(program string, ifindex int) {
		if programs++; strings.HasSuffix(program, "_xdp") || tcHook() == "tcx" {
			attached[fmt.Sprintf("%s-%d", program, ifindex)] = true
		}
	}
	bridges := map[int]string{}
	for _, p := range ports {
		switch bridges[p.BridgeIfindex] = p.Bridge; p.Hook {
		case bothHooks():
			pin("uplink_rx_xdp", p.Ifindex)
			pin("uplink_rx", p.Ifindex)
		case tcHook():
			pin("guest_rx", p.Ifindex)
		case "":
		default:
			t.Errorf("%s has a hook %q", p.Name, p.Hook)
		}
	}
	pinned := map[string]bool{}
	for name := range h.attachments(t) {
		pinned[name] = true
	}
	if d := cmp.Diff(attached, pinned); d != "" {
		t.Errorf("pinned links are not those of the attached ports (-ports +pins):\n%s", d)
	}
	if countsLosses() {
		others = 2
	}
	if links := h.pinnedLinks(t); len(links) != len(attached)+others {
		t.Errorf("pinned links are %v, want those of ports, which are %d, and %d more", links, len(attached), others)
	}
	if on := h.programsOn(t); len(on) != programs {
		t.Errorf("programs are on %v, want %d", on, programs)
	}

	// Events may come between two dumps, and are a reason to look again.
	var diff string
	err = h.Host.WaitUntil(within(t, 5*time.Second), "the daemon has the kernel's entries", func(n *netlink.Handle) (bool, error) {
		diff, err = h.diffFDB(t, n, bridges)
		return diff == "", err
	})
	if err != nil {
		t.Errorf("%v; entries differ (-kernel +daemon):\n%s", err, diff)
	}
}

// diffFDB compares the tables of the given bridges with the daemon's.
func (h *host) diffFDB(t *testing.T, n *netlink.Handle, bridges map[int]string) (string, error) {
	entries, err := n.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return "", err
	}
	want, got := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		name, ok := bridges[e.MasterIndex]
		if !ok || e.Flags&netlink.NTF_SELF != 0 {
			continue
		}
		port := fmt.Sprint(e.LinkIndex)
		if e.State&netlink.NUD_PERMANENT != 0 {
			port = control.HostPort
		}
		want[fmt.Sprintf("%s vlan %d %s to %s", name, e.Vlan, e.HardwareAddr, port)] = true
	}
	shown, err := h.api.FDB(t.Context(), control.FDBFilter{})
	if err != nil {
		return "", err
	}
	st, err := h.api.Status(t.Context())
	if err != nil {
		return "", err
	}
	aware, own := map[string]bool{}, map[string]string{}
	for index, name := range bridges {
		l, err := n.LinkByIndex(index)
		if err != nil {
			return "", err
		}
		on := l.(*netlink.Bridge).VlanFiltering
		aware[name], own[name] = on != nil && *on, l.Attrs().HardwareAddr.String()
	}
	used := 0
	for _, e := range shown {
		port := fmt.Sprint(e.Ifindex)
		if e.Port == control.HostPort {
			port = control.HostPort
		}
		got[fmt.Sprintf("%s vlan %d %s to %s", e.Bridge, e.VLAN, e.MAC, port)] = true
		// A bridge that does not tell VLANs apart may have entries for some. Of the
		// host's addresses its own alone is worth room.
		uses := (e.VLAN == 0 || aware[e.Bridge]) && (e.Port != control.HostPort || e.MAC.String() == own[e.Bridge])
		if uses {
			used++
		}
		if e.Fast != uses {
			return fmt.Sprintf("%s on %s in VLAN %d is in the datapath: %v, want %v", e.MAC, e.Port, e.VLAN, e.Fast, uses), nil
		}
	}
	if st.FDB.Entries != used {
		return fmt.Sprintf("the datapath has %d entries, %d are shown", st.FDB.Entries, used), nil
	}
	return cmp.Diff(want, got), nil
}
