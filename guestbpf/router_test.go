package guestbpf

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// A rig is a router with three devices, whose programs are run on frames without being
// attached: the kernel's tables of its namespace are theirs.
type rig struct {
	testing.TB
	*lab.Node
	devices []*device
	fib     *router
	follow  *Follower
	// programs and counters of each device, by mode and index.
	programs map[Mode]map[int]*ebpf.Program
	counts   map[Mode]map[int]*ebpf.Map
}

const rigDevices = 3

func rigMAC(n int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, byte(n)} }
func farMAC(n int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 2, byte(n)} }

// rigAddr gives the address of station n on the wire of device i: the router is 1.
func rigAddr(i, n int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::%x", i, n))
	}
	return netip.AddrFrom4([4]byte{198, 18, byte(i), byte(n)})
}

func newRig(t testing.TB) *rig {
	t.Helper()
	node, err := lab.NewNode("router")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	r := &rig{TB: t, Node: node, programs: map[Mode]map[int]*ebpf.Program{}, counts: map[Mode]map[int]*ebpf.Map{}}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/keep_addr_on_down"} {
		r.sysctl(name, "1")
	}
	r.sysctl("net/ipv4/conf/all/rp_filter", "0")
	r.sysctl("net/ipv4/conf/default/rp_filter", "0")
	for i := range rigDevices {
		name := fmt.Sprintf("eth%d", i)
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: name, HardwareAddr: rigMAC(i)})
		veth.PeerName = fmt.Sprintf("far%d", i)
		r.must(node.Netlink().LinkAdd(veth))
		r.must(node.SetUp(name))
		r.must(node.SetUp(veth.PeerName))
		r.must(node.WaitRunning(t.Context(), name))
		r.must(node.SetOffload(name, lab.RxVLAN, false))
		for _, v6 := range []bool{false, true} {
			bits := 24
			if v6 {
				bits = 64
			}
			r.must(node.AddAddr(name, netip.PrefixFrom(rigAddr(i, 1, v6), bits)))
			for n := 2; n < 6; n++ {
				r.must(node.Netlink().NeighSet(r.neighbour(i, n, v6, farMAC(16*i+n), netlink.NUD_PERMANENT)))
			}
		}
	}
	r.inside(r.load)
	return r
}

// load loads both ways of routing for all devices.
func (r *rig) load() error {
	for i := range rigDevices {
		d, err := deviceByName(fmt.Sprintf("eth%d", i))
		if err != nil {
			return err
		}
		r.devices = append(r.devices, d)
	}
	var err error
	if r.fib, err = newRouter(L3fwdFIB, r.devices); err != nil {
		return err
	}
	r.Cleanup(r.fib.close)
	if err := r.setDevices(); err != nil {
		return err
	}
	routes, err := newRouter(L3fwdRoutes, r.devices)
	if err != nil {
		return err
	}
	if r.follow, err = newFollower(Guest{}, routes); err != nil {
		return err
	}
	r.Cleanup(r.follow.close)
	for _, router := range []*router{r.fib, routes} {
		router.refresh = 0
		r.programs[router.mode], r.counts[router.mode] = map[int]*ebpf.Program{}, map[int]*ebpf.Map{}
		for i, d := range r.devices {
			spec, err := readSpec()
			if err != nil {
				return err
			}
			counts, err := ebpf.NewMap(spec.Maps[guestMapCounts])
			if err != nil {
				return err
			}
			r.Cleanup(func() { counts.Close() })
			c, err := router.load(&hook{ifindex: d.ifindex, counts: counts}, ebpf.AttachNone)
			if err != nil {
				return err
			}
			r.Cleanup(c.Close)
			r.programs[router.mode][i], r.counts[router.mode][i] = c.Programs[string(router.mode)], counts
		}
	}
	return nil
}

// setDevices tells the router by the kernel's answers of the devices that there are.
func (r *rig) setDevices() error {
	all, err := listDevices()
	if err != nil {
		return err
	}
	return r.fib.setDevices(all, func(*device) guestFamilyBit { return guestFamilyBitROUTE_IPV4 | guestFamilyBitROUTE_IPV6 })
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) sysctl(name, value string) {
	r.Helper()
	r.must(r.SetSysctl(name, value))
}

// inside runs f in the router's namespace.
func (r *rig) inside(f func() error) {
	r.Helper()
	r.must(r.Do(f))
}

func (r *rig) neighbour(i, n int, v6 bool, mac net.HardwareAddr, state int) *netlink.Neigh {
	r.Helper()
	ifindex, err := r.Ifindex(fmt.Sprintf("eth%d", i))
	r.must(err)
	return &netlink.Neigh{LinkIndex: ifindex, IP: rigAddr(i, n, v6).AsSlice(), HardwareAddr: mac, State: state}
}

// An outcome is what became of a frame.
type outcome struct {
	verdict string
	frame   []byte // as it leaves, if it is forwarded
}

// run lets a frame come by a device, while routes hold. It is to be called inside.
func (r *rig) run(mode Mode, from int, frame []byte) (outcome, error) {
	if err := r.follow.renewLease(); err != nil {
		return outcome{}, err
	}
	return r.meet(mode, from, frame)
}

// meet lets a frame come by a device.
func (r *rig) meet(mode Mode, from int, frame []byte) (outcome, error) {
	before, err := r.readCounts(mode, from)
	if err != nil {
		return outcome{}, err
	}
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	action, err := r.programs[mode][from].Run(&opts)
	if err != nil {
		return outcome{}, err
	}
	after, err := r.readCounts(mode, from)
	if err != nil {
		return outcome{}, err
	}
	var o outcome
	for v, n := range after {
		if n == before[v] {
			continue
		}
		if o.verdict != "" || n != before[v]+1 {
			return o, fmt.Errorf("one frame was counted as %v, before it was %v", after, before)
		}
		o.verdict = verdictNames[v]
	}
	want := map[bool]uint32{true: xdpRedirect, false: xdpPass}[o.verdict == "forward"]
	if action != want {
		return o, fmt.Errorf("a frame with verdict %q met action %d, want %d", o.verdict, action, want)
	}
	if o.verdict == "forward" {
		o.frame = opts.DataOut
	} else if string(opts.DataOut) != string(frame) {
		return o, fmt.Errorf("a frame with verdict %q was changed to\n%x from\n%x", o.verdict, opts.DataOut, frame)
	}
	return o, nil
}

const xdpRedirect = 4

func (r *rig) readCounts(mode Mode, i int) (n [guestVerdictNUM_VERDICTS]uint64, err error) {
	for v := range n {
		c, err := readCount(r.counts[mode][i], v)
		if err != nil {
			return n, err
		}
		n[v] = c.Frames
	}
	return n, nil
}

// A packet is UDP between two addresses.
type packet struct {
	dest     net.HardwareAddr
	vid      int // 0: no tag
	from, to netip.Addr
	ttl      uint8
	payload  int
	sport    uint16
}

func (p packet) frame() []byte {
	f := append([]byte{}, p.dest...)
	f = append(f, 2, 0, 0, 0, 9, 9)
	put := func(n ...uint16) {
		for _, v := range n {
			f = binary.BigEndian.AppendUint16(f, v)
		}
	}
	if p.vid != 0 {
		put(0x8100, uint16(p.vid))
	}
	if p.from.Is4() {
		put(0x0800, 0x4500, uint16(28+p.payload), 7, 0x4000, uint16(p.ttl)<<8|17, 0)
		f = append(append(f, p.from.AsSlice()...), p.to.AsSlice()...)
		setSum(f[len(f)-20:])
	} else {
		put(0x86dd, 0x6000, 0, uint16(8+p.payload), 17<<8|uint16(p.ttl))
		f = append(append(f, p.from.AsSlice()...), p.to.AsSlice()...)
	}
	put(p.sport, 9, uint16(8+p.payload), 0)
	return append(f, make([]byte, p.payload)...)
}

// setSum fills in the checksum of an IPv4 header.
func setSum(header []byte) {
	header[10], header[11] = 0, 0
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum&0xffff+sum>>16))
}
