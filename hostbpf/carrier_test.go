package hostbpf

import (
	"bytes"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
)

// carrierBed is a NIC with VLAN ports on top, and a bond of two devices. The datapath
// only knows their numbers, so any devices stand for them.
type carrierBed struct {
	*Datapath
	nic, vlan, service, active, backup, bond, guest, apart int
}

const otherBridge = bridgeIfindex + 1

func carriedBy(nic int, tpid uint16, v vswitch.VLAN) vswitch.Carrier {
	return vswitch.Carrier{Ifindex: nic, Members: [vswitch.CarrierMembers]int{nic}, TPID: tpid, VLAN: v}
}

// newCarrierBed serves the VLANs 7 (802.1Q) and 8 (802.1ad) of a NIC that is no port
// itself, on a bridge with a guest, and on another a bond and a guest.
func newCarrierBed(t *testing.T, dir string) *carrierBed {
	b := &carrierBed{
		Datapath: open(t, dir), nic: veth(t, "nic0"), vlan: veth(t, "vlan7"), service: veth(t, "vlan8"),
		bond: veth(t, "bond0"), active: veth(t, "bonded0"), backup: veth(t, "bonded1"),
		guest: tap(t, "guest0"), apart: tap(t, "guest1"),
	}
	for ifindex, c := range map[int]vswitch.PortConfig{
		b.vlan:    {Role: vswitch.RoleUplink, XDP: true, Carrier: carriedBy(b.nic, tpidQ, 7)},
		b.service: {Role: vswitch.RoleUplink, XDP: true, Carrier: carriedBy(b.nic, tpidAD, 8)},
		b.guest:   {Role: vswitch.RoleGuest},
		b.bond: {Role: vswitch.RoleUplink, Bridge: otherBridge, XDP: true,
			Carrier: vswitch.Carrier{Ifindex: b.bond, Members: [vswitch.CarrierMembers]int{b.active}}},
		b.apart: {Role: vswitch.RoleGuest, Bridge: otherBridge},
	} {
		c.Ifindex, c.Attach, c.In, c.Out, c.MaxFrame = ifindex, true, true, true, 1514
		if c.Bridge == 0 {
			c.Bridge = bridgeIfindex
		}
		if err := b.SetPort(c); err != nil {
			t.Fatal(err)
		}
	}
	for key, port := range map[vswitch.FDBKey]int{
		{Bridge: bridgeIfindex, MAC: macOutside}: b.vlan, {Bridge: bridgeIfindex, MAC: macOutside2}: b.service,
		{Bridge: bridgeIfindex, MAC: macGuest}: b.guest,
		{Bridge: otherBridge, MAC: macOutside}: b.bond, {Bridge: otherBridge, MAC: macGuest}: b.apart,
	} {
		if err := b.SetFDB(key, port, vswitch.OriginLearned); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Renew(time.Minute); err != nil {
		t.Fatal(err)
	}
	return b
}

// set changes a port.
func (b *carrierBed) set(t *testing.T, ifindex int, change func(*vswitch.PortConfig)) {
	t.Helper()
	c := b.Ports()[ifindex]
	change(&c)
	if err := b.SetPort(c); err != nil {
		t.Fatal(err)
	}
}

// expect runs the uplinks' XDP program on a frame, and looks at what became of the
// frame and where it was counted; port 0 stands for no port.
func (b *carrierBed) expect(t *testing.T, what string, in int, data []byte, port int, want vswitch.Verdict, out []byte) {
	t.Helper()
	needXDPContext(t)
	bed := &verdictBed{Datapath: b.Datapath}
	before := bed.counted(t)
	opts := &ebpf.RunOptions{
		Data: data, DataOut: make([]byte, len(data)+64),
		Context: xdpContext{DataEnd: uint32(len(data)), IngressIfindex: uint32(in)},
	}
	action, err := b.programs.UplinkRxXdp.Run(opts)
	if err != nil {
		t.Fatal(err)
	}
	wantAction := passAction[vswitch.HookXDP]
	if want == vswitch.Redirected {
		wantAction = redirectAction[vswitch.HookXDP]
	}
	if action != wantAction || !bytes.Equal(opts.DataOut, out) {
		t.Errorf("%s: action is %d and the frame\n%x, want %d and\n%x", what, action, opts.DataOut, wantAction, out)
	}
	where := counter{port, vswitch.HookXDP}
	if port == 0 {
		where = counter{}
	}
	if got := bed.counted(t)[where][want] - before[where][want]; got != 1 {
		t.Errorf("%s: port %d counted %d more %s, want 1", what, port, got, want)
	}
}

const (
	tag7, tag8 = tpidQ<<16 | 7, tpidQ<<16 | 8
	service7   = tpidAD<<16 | 7
	service8   = tpidAD<<16 | 8
	priority7  = tpidQ<<16 | 5<<13 | 7
	priority   = tpidQ<<16 | 5<<13
)

func TestCarriedVLANs(t *testing.T) {
	const dir = "/sys/fs/bpf/carried"
	b := newCarrierBed(t, dir)
	defer func() { b.Close(false) }()
	plain := frame(macGuest, macOutside, other, 60)
	fromService := frame(macGuest, macOutside2, other, 60)
	check := func() {
		t.Helper()
		b.expect(t, "its VLAN", b.nic, tagged(plain, tag7), b.vlan, vswitch.Redirected, plain)
		b.expect(t, "with a priority", b.nic, tagged(plain, priority7), b.vlan, vswitch.Redirected, plain)
		b.expect(t, "the other kind of tag", b.nic, tagged(fromService, service8), b.service, vswitch.Redirected, fromService)
		b.expect(t, "from behind another port", b.nic, tagged(fromService, tag7), b.vlan, vswitch.PassLearn, tagged(fromService, tag7))
		b.expect(t, "two tags", b.nic, tagged(plain, tag7, tag8), b.vlan, vswitch.PassTagged, tagged(plain, tag7, tag8))
		b.expect(t, "two tags of two kinds", b.nic, tagged(plain, tag7, service8), b.vlan, vswitch.PassTagged, tagged(plain, tag7, service8))
		for _, tag := range []uint32{tag8, service7, priority} {
			b.expect(t, "no VLAN of ours", b.nic, tagged(plain, tag), 0, vswitch.PassNoPort, tagged(plain, tag))
		}
		b.expect(t, "untagged", b.nic, plain, 0, vswitch.PassNoPort, plain)
		b.expect(t, "elsewhere", b.active, tagged(plain, tag7), b.bond, vswitch.Redirected, tagged(plain, tag7))
	}
	check()
	longest := frame(macGuest, macOutside, other, 1514)
	b.expect(t, "longest", b.nic, tagged(longest, tag7), b.vlan, vswitch.Redirected, longest)

	// A VLAN-aware bridge puts its own in place of the device's.
	aware := func(ifindex int, pvid vswitch.VLAN, untagged bool) {
		b.set(t, ifindex, func(c *vswitch.PortConfig) {
			set := &vswitch.VLANSet{PVID: pvid}
			set.Put(30, untagged)
			c.VLANProtocol, c.VLANs = tpidQ, set
		})
	}
	aware(b.vlan, 30, true)
	aware(b.guest, 0, false)
	for mac, port := range map[vswitch.MAC]int{macOutside: b.vlan, macGuest: b.guest} {
		if err := b.SetFDB(vswitch.FDBKey{Bridge: bridgeIfindex, MAC: mac, VLAN: 30}, port, vswitch.OriginLearned); err != nil {
			t.Fatal(err)
		}
	}
	b.expect(t, "on a VLAN-aware bridge", b.nic, tagged(plain, tag7), b.vlan, vswitch.Redirected, tagged(plain, tpidQ<<16|30))
	for _, ifindex := range []int{b.vlan, b.guest} {
		b.set(t, ifindex, func(c *vswitch.PortConfig) { c.VLANProtocol, c.VLANs = 0, nil })
	}

	// What is adopted is the same.
	before := maps.Clone(b.Ports())
	if err := b.Close(true); err != nil {
		t.Fatal(err)
	}
	b.Datapath = open(t, dir)
	if diff := cmp.Diff(before, b.Ports()); diff != "" {
		t.Errorf("adopted (-before +after):\n%s", diff)
	}
	check()

	// The NIC as a port of its own: its VLANs stay others'.
	own := config(b.nic, vswitch.RoleUplink)
	own.Bridge = otherBridge
	taken := &vswitch.VLANSet{}
	taken.Put(9, false)
	own.VLANs = taken
	if err := b.SetPort(own); err != nil {
		t.Fatal(err)
	}
	b.expect(t, "its VLAN, beside the NIC", b.nic, tagged(plain, tag7), b.vlan, vswitch.Redirected, plain)
	b.expect(t, "the NIC's own", b.nic, plain, b.nic, vswitch.PassLearn, plain)
	b.expect(t, "a VLAN device of others", b.nic, tagged(plain, tpidQ<<16|9), b.nic, vswitch.PassVLAN, tagged(plain, tpidQ<<16|9))
	b.expect(t, "a VLAN that nobody takes", b.nic, tagged(plain, tag8), b.nic, vswitch.PassLearn, tagged(plain, tag8))

	// The program stays until the last of the ports that have it has gone.
	pin := b.pins.linkPath(linkName(vswitch.RoleUplink, vswitch.HookXDP, b.nic))
	for _, ifindex := range []int{b.nic, b.vlan, b.service} {
		if _, err := os.Stat(pin); err != nil {
			t.Errorf("before port %d has gone: %v", ifindex, err)
		}
		if err := b.DeletePort(ifindex); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(pin); !os.IsNotExist(err) {
		t.Errorf("the program outlives its ports (%v)", err)
	}
	if reason, err := foreignXDP(b.nic); err != nil || reason != nil {
		t.Errorf("the NIC still has a program: %v, %v", reason, err)
	}
	for i, entry := range b.ports.index.entries {
		if indexKey(entry>>16).ifindex() == uint32(b.nic) {
			t.Errorf("place %d of the index still leads from the NIC: %#x", i, entry)
		}
	}
}

func TestBondMembers(t *testing.T) {
	const dir = "/sys/fs/bpf/bond"
	b := newCarrierBed(t, dir)
	defer func() { b.Close(false) }()
	plain := frame(macGuest, macOutside, other, 60)
	b.expect(t, "the active device", b.active, plain, b.bond, vswitch.Redirected, plain)
	b.expect(t, "the backup", b.backup, plain, 0, vswitch.PassNoPort, plain)
	b.set(t, b.bond, func(c *vswitch.PortConfig) { c.Carrier.Members[0] = b.backup })
	b.expect(t, "after a failover", b.active, plain, 0, vswitch.PassNoPort, plain)
	b.expect(t, "after a failover", b.backup, plain, b.bond, vswitch.Redirected, plain)

	// A VLAN of the bond, on the bridge of the other guest.
	over := vswitch.Carrier{Ifindex: b.bond, Members: [vswitch.CarrierMembers]int{b.active, b.backup}, TPID: tpidQ, VLAN: 9}
	b.set(t, b.vlan, func(c *vswitch.PortConfig) { c.Carrier = over })
	for mac, port := range map[vswitch.MAC]int{macOutside: b.vlan, macGuest: b.guest} {
		if err := b.SetFDB(vswitch.FDBKey{Bridge: bridgeIfindex, MAC: mac}, port, vswitch.OriginLearned); err != nil {
			t.Fatal(err)
		}
	}
	for _, in := range []int{b.active, b.backup} {
		b.expect(t, "a VLAN of the bond", in, tagged(plain, tpidQ<<16|9), b.vlan, vswitch.Redirected, plain)
	}
	b.expect(t, "where it was before", b.nic, tagged(plain, tag7), 0, vswitch.PassNoPort, tagged(plain, tag7))

	before := maps.Clone(b.Ports())
	if err := b.Close(true); err != nil {
		t.Fatal(err)
	}
	b.Datapath = open(t, dir)
	if diff := cmp.Diff(before, b.Ports()); diff != "" {
		t.Errorf("adopted (-before +after):\n%s", diff)
	}
	b.expect(t, "after a restart", b.backup, plain, b.bond, vswitch.Redirected, plain)
	b.set(t, b.bond, func(c *vswitch.PortConfig) { c.XDP, c.Carrier = false, vswitch.Carrier{} })
	b.expect(t, "without XDP", b.backup, plain, 0, vswitch.PassNoPort, plain)
	b.expect(t, "its VLAN still", b.backup, tagged(plain, tpidQ<<16|9), b.vlan, vswitch.Redirected, plain)
}

// TestD10ForeignBelow: XDP must not go past what others have between it and the port.
func TestD10ForeignBelow(t *testing.T) {
	needTCX(t)
	d := openFresh(t)
	nic, vlan := veth(t, "nic0"), veth(t, "vlan7")
	if err := d.SetPort(config(nic, vswitch.RoleUplink)); err != nil { // our own there is no reason
		t.Fatal(err)
	}
	d.ShowTags(Devices{All: true}, nil)
	ports := map[int]vswitch.Port{vlan: {Role: vswitch.RoleUplink, Kind: "vlan", Carrier: carriedBy(nic, tpidQ, 7)}}
	expect := func(what, text string) {
		t.Helper()
		found, err := d.Holds(ports)
		if err != nil {
			t.Fatal(err)
		}
		held := found[vlan]
		if text == "" && len(held) == 0 {
			return
		}
		if len(held) != 1 || text == "" || held[0].Code != vswitch.HoldNoXDP || held[0].Direction != 0 || !strings.Contains(held[0].Text, text) {
			t.Errorf("%s: held for %+v, want %q and tc alone", what, held, text)
		}
	}
	expect("nothing foreign", "")
	l, err := link.AttachTCX(link.TCXOptions{Program: passProgram(t, ebpf.SchedCLS, -1), Interface: nic, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		t.Fatal(err)
	}
	expect("tcx on the NIC", "nic0")
	l.Close()
	expect("it has gone", "")
	if l, err = link.AttachXDP(link.XDPOptions{Program: passProgram(t, ebpf.XDP, 2), Interface: vlan, Flags: link.XDPGenericMode}); err != nil {
		t.Fatal(err)
	}
	expect("XDP on the VLAN device", "vlan7")
	l.Close()
}
