package hostbpf

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { lab.Main(m) }

// xdpContext is struct xdp_md.
type xdpContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// open opens a datapath of the test's own.
func open(t *testing.T, dir string) *Datapath {
	t.Helper()
	d, err := Open(Options{PinDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func openFresh(t *testing.T) *Datapath {
	t.Helper()
	d := open(t, filepath.Join("/sys/fs/bpf", filepath.Base(t.Name())))
	t.Cleanup(func() {
		if err := d.Close(false); err != nil {
			t.Error(err)
		}
	})
	return d
}

// device makes a link that the test removes again, and gives its ifindex.
func device(t *testing.T, l netlink.Link) int {
	t.Helper()
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	made, err := netlink.LinkByName(l.Attrs().Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(made) })
	if err := netlink.LinkSetUp(made); err != nil {
		t.Fatal(err)
	}
	return made.Attrs().Index
}

func veth(t *testing.T, name string) int {
	t.Helper()
	return device(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "peer"})
}

func tap(t *testing.T, name string) int {
	t.Helper()
	return device(t, &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP})
}

// frame builds a frame of length bytes with the given type.
func frame(dst, src vswitch.MAC, etherType uint16, length int) []byte {
	b := append(append(append([]byte{}, dst[:]...), src[:]...), byte(etherType>>8), byte(etherType))
	return append(b, make([]byte, max(0, length-len(b)))...)
}

const bridgeIfindex = 1 << 20 // no such device: the datapath only compares it

// verdictBed is a switch with one uplink, two open guests, a held one, one with
// a qdisc that limits it, and two that are isolated.
type verdictBed struct {
	*Datapath
	uplink, guest, other, held, queued, alone, apart, stranger int
}

var (
	macOutside  = vswitch.MAC{2, 0, 0, 0, 0, 1}
	macGuest    = vswitch.MAC{2, 0, 0, 0, 0, 2}
	macOther    = vswitch.MAC{2, 0, 0, 0, 0, 3}
	macHeld     = vswitch.MAC{2, 0, 0, 0, 0, 4}
	macHost     = vswitch.MAC{2, 0, 0, 0, 0, 5}
	macStranger = vswitch.MAC{2, 0, 0, 0, 0, 6}
	macOutside2 = vswitch.MAC{2, 0, 0, 0, 0, 7}
	macAlone    = vswitch.MAC{2, 0, 0, 0, 0, 8}
	macApart    = vswitch.MAC{2, 0, 0, 0, 0, 9}
	macQueued   = vswitch.MAC{2, 0, 0, 0, 0, 10}
	macAll      = vswitch.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

func newVerdictBed(t *testing.T) *verdictBed {
	d := openFresh(t)
	b := &verdictBed{
		Datapath: d, uplink: veth(t, "up0"), guest: tap(t, "guest0"), other: tap(t, "guest1"),
		held: tap(t, "guest2"), queued: tap(t, "guest5"), alone: tap(t, "guest3"), apart: tap(t, "guest4"), stranger: veth(t, "stranger"),
	}
	for ifindex, c := range map[int]vswitch.PortConfig{
		b.uplink: {Role: vswitch.RoleUplink, Attach: true, XDP: true, In: true, Out: true},
		b.guest:  {Role: vswitch.RoleGuest, Attach: true, In: true, Out: true},
		b.other:  {Role: vswitch.RoleGuest, Attach: true, In: true, Out: true},
		b.held:   {Role: vswitch.RoleGuest, Attach: true},
		b.queued: {Role: vswitch.RoleGuest, Attach: true, In: true, Out: true, Queued: true},
		b.alone:  {Role: vswitch.RoleGuest, Attach: true, In: true, Out: true, Isolated: true},
		b.apart:  {Role: vswitch.RoleGuest, Attach: true, In: true, Out: true, Isolated: true},
	} {
		c.Ifindex, c.Bridge, c.MaxFrame = ifindex, bridgeIfindex, 1514
		if err := d.SetPort(c); err != nil {
			t.Fatal(err)
		}
	}
	for m, port := range map[vswitch.MAC]int{
		macOutside: b.uplink, macOutside2: b.uplink, macGuest: b.guest, macOther: b.other,
		macHeld: b.held, macQueued: b.queued, macAlone: b.alone, macApart: b.apart, macHost: vswitch.Host,
	} {
		if err := d.SetFDB(vswitch.FDBKey{Bridge: bridgeIfindex, MAC: m}, port, vswitch.OriginLearned); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Renew(time.Minute); err != nil {
		t.Fatal(err)
	}
	return b
}

var (
	hookTC, hookXDP = vswitch.HookTC, vswitch.HookXDP
	redirectAction  = [vswitch.NumHooks]uint32{vswitch.HookTC: 7, vswitch.HookXDP: 4}
	passAction      = [vswitch.NumHooks]uint32{vswitch.HookTC: 0xffffffff, vswitch.HookXDP: 2}
)

// hookOf tells where a program runs.
func hookOf(program string) vswitch.Hook {
	if strings.HasSuffix(program, "_xdp") {
		return vswitch.HookXDP
	}
	return vswitch.HookTC
}

const (
	other = 0x88b6 // a type that nothing is known of
	vlan  = 0x8100
)

// TestVerdicts gives each hook frames for every verdict, and looks at the
// program's action and at the counters: exactly one, at the right port.
func TestVerdicts(t *testing.T) {
	b := newVerdictBed(t)
	tests := []struct {
		name      string
		in        int
		frame     []byte
		setup     func(*testing.T) (undo func())
		want      vswitch.Verdict
		only      *vswitch.Hook // if the verdict is one kind of hook's own
		hooks     []string      // the same, by program
		gso       uint32
		uncounted bool
	}{
		{name: "known unicast", frame: frame(macGuest, macOutside, other, 60), want: vswitch.Redirected},
		{name: "longest", frame: frame(macGuest, macOutside, other, 1514), want: vswitch.Redirected},
		{name: "one byte too long", frame: frame(macGuest, macOutside, other, 1515), want: vswitch.PassTooLong},
		{name: "long but to be segmented", frame: frame(macGuest, macOutside, other, 3000), gso: 1448, only: &hookTC, want: vswitch.Redirected},
		{name: "without its checksum", frame: partialFrame(t), want: vswitch.PassPartial,
			hooks: []string{hooksProgGuestRxXdp}},
		{name: "without its checksum", frame: partialFrame(t), want: vswitch.Redirected,
			hooks: []string{hooksProgGuestRx, hooksProgUplinkRx}},
		{name: "several buffers", frame: frame(macGuest, macOutside, other, 9000), only: &hookXDP, want: vswitch.PassMultiBuffer},
		{name: "bare header", frame: frame(macGuest, macOutside, other, 14), only: &hookXDP, want: vswitch.PassShort},
		{name: "PPPoE without its header", frame: frame(macGuest, macOutside, 0x8864, 25), want: vswitch.PassShort},
		{name: "shortest", frame: frame(macGuest, macOutside, other, 26), want: vswitch.Redirected},
		{name: "broadcast", frame: frame(macAll, macOutside, other, 60), want: vswitch.PassGroup},
		{name: "multicast", frame: frame(vswitch.MAC{1, 0, 0x5e, 0, 0, 1}, macOutside, other, 60), want: vswitch.PassGroup},
		{name: "tagged", frame: frame(macGuest, macOutside, vlan, 60), want: vswitch.Redirected, hooks: []string{hooksProgUplinkRxXdp}},
		{name: "source unknown", frame: frame(macGuest, macStranger, other, 60), want: vswitch.PassLearn},
		{name: "source known elsewhere", frame: frame(macGuest, macOther, other, 60), want: vswitch.PassLearn},
		{name: "source is the host's", frame: frame(macGuest, macHost, other, 60), want: vswitch.PassLearn},
		{name: "source is a group", frame: frame(macGuest, macAll, other, 60), want: vswitch.PassLearn},
		{name: "source is zero", frame: frame(macGuest, vswitch.MAC{}, other, 60), want: vswitch.PassLearn},
		{name: "destination unknown", frame: frame(macStranger, macOutside, other, 60), want: vswitch.PassUnknown},
		{name: "destination is zero", frame: frame(vswitch.MAC{}, macOutside, other, 60), want: vswitch.PassUnknown},
		{name: "for the host", frame: frame(macHost, macOutside, other, 60), want: vswitch.PassHost},
		{name: "behind the same port", frame: frame(macOutside2, macOutside, other, 60), want: vswitch.PassSamePort},
		{name: "egress held", frame: frame(macHeld, macOutside, other, 60), want: vswitch.PassEgressHeld},
		{name: "to a limited port", frame: frame(macQueued, macOutside, other, 60), only: &hookXDP, want: vswitch.PassEgressHeld},
		{name: "to a limited port", frame: frame(macQueued, macOutside, other, 60), only: &hookTC, want: vswitch.Redirected},
		{name: "to an isolated port", frame: frame(macAlone, macOutside, other, 60), want: vswitch.Redirected},
		{name: "from an isolated port", in: b.alone, frame: frame(macOutside, macAlone, other, 60), only: &hookTC, want: vswitch.Redirected},
		{name: "between isolated ports", in: b.alone, frame: frame(macApart, macAlone, other, 60), want: vswitch.PassIsolated},
		{name: "ingress held", in: b.held, frame: frame(macGuest, macHeld, other, 60), want: vswitch.PassHeld},
		{name: "not a port", in: b.stranger, frame: frame(macGuest, macOutside, other, 60), want: vswitch.PassNoPort, uncounted: true},
		{name: "deadline over", frame: frame(macGuest, macOutside, other, 60), want: vswitch.PassExpired,
			setup: func(t *testing.T) func() {
				b.Expire()
				return func() {
					if err := b.Renew(time.Minute); err != nil {
						t.Fatal(err)
					}
				}
			}},
		{name: "no device", frame: frame(macGuest, macOutside, other, 60), only: &hookXDP, want: vswitch.PassNoDevice,
			setup: func(t *testing.T) func() {
				if err := b.maps.TxPorts.Delete(uint32(b.guest)); err != nil {
					t.Fatal(err)
				}
				return func() {
					if err := b.allowXDP(b.guest); err != nil {
						t.Fatal(err)
					}
				}
			}},
	}
	tried := map[vswitch.Verdict]bool{
		vswitch.PassBulk: true, // see TestBulkFlows
		// See TestVLANs.
		vswitch.PassTagged: true, vswitch.PassVLAN: true, vswitch.PassNoRoom: true,
		vswitch.PassFiltered: true, // see TestFilters
	}
	for _, tt := range tests {
		for _, hook := range []string{hooksProgUplinkRxXdp, hooksProgUplinkRx, hooksProgGuestRxXdp, hooksProgGuestRx} {
			at := hookOf(hook)
			if tt.only != nil && *tt.only != at || tt.hooks != nil && !slices.Contains(tt.hooks, hook) {
				continue
			}
			t.Run(hook+"/"+tt.name, func(t *testing.T) {
				if tt.setup != nil {
					defer tt.setup(t)()
				}
				in := tt.in
				if in == 0 {
					in = b.uplink
				}
				before := b.counted(t)
				action := b.run(t, hook, in, tt.frame, tt.gso)
				want := passAction[at]
				if tt.want == vswitch.Redirected {
					want = redirectAction[at]
				}
				if action != want {
					t.Errorf("action is %d, want %d", action, want)
				}
				where := counter{in, at}
				if tt.uncounted {
					where = counter{}
				}
				for c, counts := range b.counted(t) {
					for _, v := range vswitch.Verdicts() {
						more := uint64(0)
						if c == where && v == tt.want {
							more = 1
						}
						if got := counts[v] - before[c][v]; got != more {
							t.Errorf("port %d counted %d more %s at %s, want %d", c.port, got, v, c.hook, more)
						}
					}
				}
			})
		}
		tried[tt.want] = true
	}
	for _, v := range vswitch.Verdicts() {
		if !tried[v] {
			t.Errorf("no frame for verdict %s", v)
		}
	}
}

// partialFrame is of a guest that leaves its checksum to the host.
func partialFrame(t *testing.T) []byte {
	b := segment{udp: true, port: 7, payload: 8}.frame(t)
	copy(b[14+20+6:], []byte{0x8c, 0x52}) // 198.18.0.1 + 198.18.0.11 + 17 + 16
	return b
}

// A counter is where a frame is counted; port 0 stands for no port.
type counter struct {
	port int
	hook vswitch.Hook
}

// counted gives all verdicts.
func (b *verdictBed) counted(t *testing.T) map[counter]map[vswitch.Verdict]uint64 {
	t.Helper()
	counters, err := b.Counters()
	if err != nil {
		t.Fatal(err)
	}
	unclaimed, err := b.Unclaimed()
	if err != nil {
		t.Fatal(err)
	}
	all := map[counter]map[vswitch.Verdict]uint64{{}: {vswitch.PassNoPort: unclaimed}}
	for ifindex, c := range counters {
		for _, at := range vswitch.Hooks() {
			all[counter{ifindex, at}] = c.Verdicts[at]
		}
	}
	return all
}

// run runs a hook's program on one frame and gives its action.
func (b *verdictBed) run(t *testing.T, hook string, in int, data []byte, gso uint32) uint32 {
	t.Helper()
	opts := &ebpf.RunOptions{Data: data}
	if hookOf(hook) == vswitch.HookXDP {
		needXDPContext(t)
		opts.Context = xdpContext{DataEnd: uint32(len(data)), IngressIfindex: uint32(in)}
	} else {
		opts.Context = skbContext(in, gso)
	}
	p := map[string]*ebpf.Program{
		hooksProgUplinkRxXdp: b.programs.UplinkRxXdp, hooksProgUplinkRx: b.programs.UplinkRx,
		hooksProgGuestRxXdp: b.programs.GuestRxXdp, hooksProgGuestRx: b.programs.GuestRx,
	}[hook]
	action, err := p.Run(opts)
	if err != nil {
		t.Fatal(err)
	}
	return action
}

// skbContext is struct __sk_buff with the fields that BPF_PROG_RUN takes.
func skbContext(ifindex int, gsoSize uint32) []byte {
	context := make([]byte, 192)
	put := func(offset int, v uint32) {
		for i := range 4 {
			context[offset+i] = byte(v >> (8 * i))
		}
	}
	put(40, uint32(ifindex))
	put(176, gsoSize)
	return context
}

// TestVerdictNumbers holds the numbers in C against those in Go.
func TestVerdictNumbers(t *testing.T) {
	for want, got := range map[vswitch.Verdict]hooksVerdict{
		vswitch.Redirected: hooksVerdictVERDICT_REDIRECTED, vswitch.PassExpired: hooksVerdictVERDICT_PASS_EXPIRED,
		vswitch.PassNoPort: hooksVerdictVERDICT_PASS_NO_PORT, vswitch.PassHeld: hooksVerdictVERDICT_PASS_HELD,
		vswitch.PassShort: hooksVerdictVERDICT_PASS_SHORT, vswitch.PassMultiBuffer: hooksVerdictVERDICT_PASS_MULTI_BUFFER,
		vswitch.PassGroup: hooksVerdictVERDICT_PASS_GROUP, vswitch.PassTagged: hooksVerdictVERDICT_PASS_TAGGED,
		vswitch.PassLearn: hooksVerdictVERDICT_PASS_LEARN, vswitch.PassUnknown: hooksVerdictVERDICT_PASS_UNKNOWN,
		vswitch.PassHost: hooksVerdictVERDICT_PASS_HOST, vswitch.PassSamePort: hooksVerdictVERDICT_PASS_SAME_PORT,
		vswitch.PassTooLong: hooksVerdictVERDICT_PASS_TOO_LONG, vswitch.PassEgressHeld: hooksVerdictVERDICT_PASS_EGRESS_HELD,
		vswitch.PassNoDevice: hooksVerdictVERDICT_PASS_NO_DEVICE, vswitch.PassBulk: hooksVerdictVERDICT_PASS_BULK,
		vswitch.PassFiltered: hooksVerdictVERDICT_PASS_FILTERED,
	} {
		if uint32(want) != uint32(got) {
			t.Errorf("%s is %d in Go and %d in C", want, want, got)
		}
	}
	if n := len(vswitch.Verdicts()); n > int(hooksVerdictVERDICT_SLOTS) {
		t.Errorf("there are %d verdicts, and room for %d", n, hooksVerdictVERDICT_SLOTS)
	}
}
