package hostbpf

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// passProgram is somebody else's program, which passes everything.
func passProgram(t *testing.T, typ ebpf.ProgramType, action int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: typ, Name: "theirs", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, action), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func config(ifindex int, role vswitch.Role) vswitch.PortConfig {
	return vswitch.PortConfig{
		Ifindex: ifindex, Bridge: bridgeIfindex, Role: role, Attach: true, XDP: role == vswitch.RoleUplink,
		In: true, Out: true, MaxFrame: 1514,
	}
}

// tcxPrograms gives the programs at a device's tcx ingress.
func tcxPrograms(t *testing.T, ifindex int) (ids []ebpf.ProgramID) {
	t.Helper()
	r, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Programs {
		ids = append(ids, p.ID)
	}
	return ids
}

func TestD10ForeignIsLeftAlone(t *testing.T) {
	xdp, tc := passProgram(t, ebpf.XDP, 2), passProgram(t, ebpf.SchedCLS, -1)
	for _, tt := range []struct {
		name   string
		role   vswitch.Role
		put    func(t *testing.T, ifindex int) (take func() error)
		reason string
	}{
		{"XDP on an uplink", vswitch.RoleUplink, func(t *testing.T, ifindex int) func() error {
			l, err := link.AttachXDP(link.XDPOptions{Program: xdp, Interface: ifindex})
			if err != nil {
				t.Fatal(err)
			}
			return l.Close
		}, "(theirs)"},
		{"generic XDP on an uplink", vswitch.RoleUplink, func(t *testing.T, ifindex int) func() error {
			l, err := link.AttachXDP(link.XDPOptions{Program: xdp, Interface: ifindex, Flags: link.XDPGenericMode})
			if err != nil {
				t.Fatal(err)
			}
			return l.Close
		}, "(theirs)"},
		{"tcx at the ingress of a tap", vswitch.RoleGuest, func(t *testing.T, ifindex int) func() error {
			needTCX(t)
			l, err := link.AttachTCX(link.TCXOptions{Program: tc, Interface: ifindex, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				t.Fatal(err)
			}
			return l.Close
		}, "(theirs)"},
		{"tcx at the egress of a tap", vswitch.RoleGuest, func(t *testing.T, ifindex int) func() error {
			needTCX(t)
			l, err := link.AttachTCX(link.TCXOptions{Program: tc, Interface: ifindex, Attach: ebpf.AttachTCXEgress})
			if err != nil {
				t.Fatal(err)
			}
			return l.Close
		}, "(theirs)"},
		{"tc filter at the egress of a tap", vswitch.RoleGuest, func(t *testing.T, ifindex int) func() error {
			if err := netlink.QdiscReplace(clsactQdisc(ifindex)); err != nil && !errors.Is(err, unix.EEXIST) {
				t.Fatal(err)
			}
			f := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
				LinkIndex: ifindex, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: 1, Protocol: 3,
			}, Fd: tc.FD(), Name: "theirs", DirectAction: true}
			if err := netlink.FilterAdd(f); err != nil {
				t.Fatal(err)
			}
			return func() error { return netlink.FilterDel(f) }
		}, "tc bpf filter"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, "/sys/fs/bpf/foreign")
			defer d.Close(false)
			ifindex := veth(t, "dev0")
			if tt.role == vswitch.RoleGuest {
				ifindex = tap(t, "dev1")
			}
			take := tt.put(t, ifindex)
			var h *vswitch.HeldError
			err := d.SetPort(config(ifindex, tt.role))
			if !errors.As(err, &h) || h.Reason.Code != vswitch.HoldForeign || !strings.Contains(h.Reason.Text, tt.reason) {
				t.Errorf("got %v, want a port held back that names %s", err, tt.reason)
			}
			if len(d.Ports()) != 0 {
				t.Errorf("a refused port is held: %v", d.Ports())
			}
			if err := take(); err != nil {
				t.Fatalf("taking the foreign program off: %v (was it replaced?)", err)
			}
			if err := d.SetPort(config(ifindex, tt.role)); err != nil {
				t.Fatalf("after the foreign program has gone: %v", err)
			}
			if tt.role != vswitch.RoleGuest {
				return
			}
			if found, err := d.Holds(map[int]vswitch.Port{ifindex: {Role: tt.role}}); err != nil || len(found) > 0 {
				t.Errorf("our own program is taken for another's: %v, %v", found, err)
			}
			take = tt.put(t, ifindex) // beside ours
			found, err := d.Holds(map[int]vswitch.Port{ifindex: {Role: tt.role}})
			if err != nil || len(found[ifindex]) != 1 {
				t.Errorf("found %v, %v beside ours, want one reason", found, err)
			}
			if err := d.DeletePort(ifindex); err != nil {
				t.Fatal(err)
			}
			if err := take(); err != nil {
				t.Errorf("the foreign program is gone with ours: %v", err)
			}
		})
	}
}

func TestD11AdoptedLinkKeepsItsPlace(t *testing.T) {
	needTCX(t)
	const dir = "/sys/fs/bpf/adopt"
	d := open(t, dir)
	ifindex, gone := tap(t, "dev0"), tap(t, "dev1")
	for _, i := range []int{ifindex, gone} {
		if err := d.SetPort(config(i, vswitch.RoleGuest)); err != nil {
			t.Fatal(err)
		}
	}
	before := tcxPrograms(t, ifindex)
	if err := d.Close(true); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: gone}}); err != nil {
		t.Fatal(err)
	}
	d = open(t, dir)
	defer d.Close(false)
	after := tcxPrograms(t, ifindex)
	if len(after) != 1 || after[0] == before[0] {
		t.Errorf("programs %v became %v, want one new one in place of one", before, after)
	}
	if got := d.Hooks(ifindex); !slices.Equal(got, []string{"tcx"}) {
		t.Errorf("hooks are %q, want tcx", got)
	}
	if got := d.Hooks(gone); len(got) != 0 {
		t.Errorf("a device that is gone has hooks %q", got)
	}
	if err := d.DeletePort(gone); err != nil {
		t.Errorf("deleting a port whose device is gone: %v", err)
	}
	if _, err := os.Stat(d.pins.linkPath(linkName(vswitch.RoleGuest, vswitch.HookTC, gone))); !os.IsNotExist(err) {
		t.Errorf("the dead link is still pinned (%v)", err)
	}
}

// TestClsact drives the hook of kernels before 6.6, which this one still has.
func TestClsact(t *testing.T) {
	d := openFresh(t)
	ifindex := tap(t, "dev0")
	h, err := attachClsact(ifindex, d.programs.GuestRx)
	if err != nil {
		t.Fatal(err)
	}
	own, err := d.ownPrograms()
	if err != nil {
		t.Fatal(err)
	}
	if what := foreignFilter(ifindex, own); what != "" {
		t.Errorf("our own filter is taken for another's: %s", what)
	}
	adopted, err := adoptClsact(ifindex, d.programs.GuestRx)
	if err != nil || adopted == nil {
		t.Fatalf("adopting our filter: got %v, %v", adopted, err)
	}
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		t.Fatal(err)
	}
	if filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) != 1 {
		t.Errorf("there are filters %v (%v) after adoption, want one", filters, err)
	}
	if err := h.detach(); err != nil {
		t.Fatal(err)
	}
	if has, err := classifiers(); err != nil || has[ifindex] {
		t.Errorf("our qdisc is still there (%v)", err)
	}
	// Beside somebody else's filter the qdisc stays.
	theirs := clsactFilter{ifindex}.filter(passProgram(t, ebpf.SchedCLS, -1).FD())
	theirs.Priority, theirs.Name = 1, "theirs"
	if _, err := attachClsact(ifindex, d.programs.GuestRx); err != nil {
		t.Fatal(err)
	}
	if err := netlink.FilterAdd(theirs); err != nil {
		t.Fatal(err)
	}
	if err := h.detach(); err != nil {
		t.Fatal(err)
	}
	if filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) != 1 {
		t.Errorf("there are filters %v (%v), want the other one alone", filters, err)
	}
}

func TestD8UnsupportedDriver(t *testing.T) {
	d := openFresh(t)
	ifindex := device(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "noxdp"}})
	var h *vswitch.HeldError
	if err := d.SetPort(config(ifindex, vswitch.RoleUplink)); !errors.As(err, &h) || h.Reason.Code != vswitch.HoldNoXDP {
		t.Errorf("a driver without native XDP: got %v, want a reason to do without", err)
	}
	// A veth takes no MTU for which its peer could not have the pages.
	big := veth(t, "big0")
	peer, err := netlink.LinkByName("big0peer")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(peer, 65535); err != nil {
		t.Fatal(err)
	}
	h = nil
	err = d.SetPort(config(big, vswitch.RoleUplink))
	t.Logf("MTU 65535: %v", err)
	if err != nil && !errors.As(err, &h) {
		t.Errorf("MTU 65535: got %v, want success or a reason to hold it back", err)
	}
}

func TestD6HiddenTags(t *testing.T) {
	d := openFresh(t)
	ports := map[int]vswitch.Port{veth(t, "dev0"): {Role: vswitch.RoleUplink}}
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, tt := range []struct {
		rx, stag bool
		want     int
	}{{true, true, 1}, {true, false, 1}, {false, true, 1}, {false, false, 0}} {
		if err := e.Change("dev0", map[string]bool{"rx-vlan-hw-parse": tt.rx, "rx-vlan-stag-hw-parse": tt.stag}); err != nil {
			t.Fatal(err)
		}
		found, err := d.Holds(ports)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, reasons := range found {
			for _, r := range reasons {
				if n++; r.Code != vswitch.HoldHiddenTags || r.Direction != 0 {
					t.Errorf("got %v, want hidden tags, which hold no direction", r)
				}
			}
		}
		if n != tt.want {
			t.Errorf("C-tags hidden %t, S-tags %t: %d reasons, want %d", tt.rx, tt.stag, n, tt.want)
		}
	}
}

// TestD9RefusalIsExplained: a driver has one errno for all its limits.
func TestD9RefusalIsExplained(t *testing.T) {
	dev := veth(t, "dev0")
	var h *vswitch.HeldError
	if err := xdpRefused(dev, unix.EINVAL); !errors.As(err, &h) {
		t.Fatalf("got %v, want a reason to do without XDP", err)
	}
	if h.Reason.Code != vswitch.HoldNoXDP || h.Reason.Direction != 0 {
		t.Errorf("the reason is %v, want one that holds no direction", h.Reason)
	}
	for _, want := range []string{"MTU", "queues", "ip link show dev0", "ethtool -l dev0", "go by tc"} {
		if !strings.Contains(h.Reason.Text, want) {
			t.Errorf("%q does not speak of %q", h.Reason.Text, want)
		}
	}
}

// TestD12LinkOfOlderLibrary adopts a link whose program was loaded for another attach
// type, as libraries' versions differ in: the kernel refuses the update, and the hook
// is attached anew.
func TestD12LinkOfOlderLibrary(t *testing.T) {
	const dir = "/sys/fs/bpf/older"
	d := open(t, dir)
	ifindex := veth(t, "dev0")
	if err := d.SetPort(config(ifindex, vswitch.RoleUplink)); err != nil {
		t.Fatal(err)
	}
	pin := d.pins.linkPath(linkName(vswitch.RoleUplink, vswitch.HookXDP, ifindex))
	if err := d.Close(true); err != nil {
		t.Fatal(err)
	}
	ours, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ours.Unpin(), ours.Close()); err != nil {
		t.Fatal(err)
	}
	older, err := link.AttachXDP(link.XDPOptions{
		Program: passProgram(t, ebpf.XDP, 2), Interface: ifindex, Flags: link.XDPDriverMode,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(older.Pin(pin), older.Close()); err != nil {
		t.Fatal(err)
	}
	d = open(t, dir)
	defer d.Close(false)
	if err := d.SetPort(config(ifindex, vswitch.RoleUplink)); err != nil {
		t.Fatal(err)
	}
	if got := d.Hooks(ifindex); !slices.Equal(got, []string{"xdp native", "tcx"}) {
		t.Errorf("hooks are %q, want both", got)
	}
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		t.Fatal(err)
	}
	info, err := d.programs.UplinkRxXdp.Info()
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := info.ID(); l.Attrs().Xdp.ProgId != uint32(id) {
		t.Errorf("program %d is on the device, want our %d", l.Attrs().Xdp.ProgId, id)
	}
}
