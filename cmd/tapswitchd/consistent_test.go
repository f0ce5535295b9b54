package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

// lossLinks is the number of pinned links that are on no port.
const lossLinks = 2

// checkConsistent checks that the datapath is attached to exactly those ports
// which are said to be, and has exactly the entries of the kernel's bridges.
func (h *host) checkConsistent(t *testing.T) {
	t.Helper()
	ports, err := h.api.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	attached := map[string]bool{}
	bridges := map[int]string{}
	for _, p := range ports {
		switch bridges[p.BridgeIfindex] = p.Bridge; p.Hook {
		case "xdp native + tcx":
			attached[fmt.Sprintf("uplink_rx_xdp-%d", p.Ifindex)] = true
			attached[fmt.Sprintf("uplink_rx-%d", p.Ifindex)] = true
		case "tcx":
			attached[fmt.Sprintf("guest_rx-%d", p.Ifindex)] = true
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
	if links := h.pinnedLinks(t); len(links) != len(attached)+lossLinks {
		t.Errorf("pinned links are %v, want those of %d ports and %d more", links, len(attached), lossLinks)
	}
	if on := h.programsOn(t); len(on) != len(attached) {
		t.Errorf("programs are on %v, want one on each of %d ports", on, len(attached))
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
	if st.FDB.Entries != len(shown) {
		return fmt.Sprintf("the datapath has %d entries, %d are shown", st.FDB.Entries, len(shown)), nil
	}
	for _, e := range shown {
		port := fmt.Sprint(e.Ifindex)
		if e.Port == control.HostPort {
			port = control.HostPort
		}
		got[fmt.Sprintf("%s vlan %d %s to %s", e.Bridge, e.VLAN, e.MAC, port)] = true
		if !e.Fast {
			t.Errorf("the datapath does not have %s on %s", e.MAC, e.Port)
		}
	}
	return cmp.Diff(want, got), nil
}
