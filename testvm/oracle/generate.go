package oracle

import (
	"encoding/binary"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// A generator makes random frames and changes: out of the same random numbers, for
// the same network, always the same ones.
type generator struct {
	*rand.Rand // decides
	// filler gives what nothing is decided by: the bytes of payloads.
	filler   *rand.Rand
	network  *network
	stations []*station
	snooping bool
	steady   bool // no station moves
	// malformed has most frames not be as they should.
	malformed bool
	made      uint64
}

func newGenerator(source rand.Source, o Options, n *network) *generator {
	g := &generator{Rand: rand.New(source), network: n, snooping: o.Snooping, malformed: o.Malformed}
	g.filler = rand.New(rand.NewPCG(g.Uint64(), 0))
	for i := range specs {
		for range stationsPerPort {
			g.add(&station{mac: g.randomMAC(), port: i})
		}
	}
	return g
}

// kinds are what frames there are, how often, and how they are made. A kind that
// can't be made just now gives none.
var kinds = []struct {
	name   string
	weight int
	make   func(*generator) *frame
	// malformed is the weight where no frame is to be as it should.
	malformed int
}{
	{"known unicast", 44, (*generator).known, 10},
	{"runt", 4, (*generator).runt, 25},
	{"oversize", 5, (*generator).oversize, 10},
	{"group", 6, (*generator).group, 0},
	{"link-local", 2, (*generator).linkLocal, 0},
	{"unknown destination", 4, (*generator).unknown, 0},
	{"new station", 2, (*generator).newStation, 0},
	{"moved station", 1, (*generator).moved, 0},
	{"bad source", 3, (*generator).badSource, 5},
	{"for the host", 4, (*generator).forHost, 0},
	{"same port", 3, (*generator).samePort, 0},
	{"tagged", 6, (*generator).tagged, 0},
	{"cut tag", 1, (*generator).cutTag, 15},
	{"partial checksum", 7, (*generator).partial, 0},
	{"segmentation", 4, (*generator).segmentation, 0},
	{"bad IP checksum", 2, (*generator).badSum, 5},
	{"bad header", 1, (*generator).badHeader, 35},
	{"IGMP", 1, (*generator).igmp, 0},
	{"into a port that is down", 1, (*generator).down, 0},
	{"scrap", 1, (*generator).scrap, 10},
}

// weight is a kind's, for this generator.
func (g *generator) weight(kind int) int {
	if g.malformed {
		return kinds[kind].malformed
	}
	return kinds[kind].weight
}

// next makes a frame.
func (g *generator) next() *frame {
	for range 1000 {
		if f := g.some(); f != nil && !(g.steady && g.moves(f)) && !touches(f, g.network.moved) {
			return f
		}
	}
	// Few ports are left, and nobody is there who could speak.
	f := g.complete(uplink, broadcast, g.randomMAC(), g.size())
	f.kind = "new station"
	return f
}

// some makes a frame of a random kind, if that can be.
func (g *generator) some() *frame {
	all := 0
	for kind := range kinds {
		all += g.weight(kind)
	}
	at := g.IntN(all)
	for kind, k := range kinds {
		if at -= g.weight(kind); at >= 0 {
			continue
		}
		f := k.make(g)
		if f == nil {
			return nil
		}
		if k.name != "cut tag" && (k.name != "tagged" || g.chance(50)) {
			g.tag(f)
		}
		f.kind = k.name
		return f
	}
	return nil
}

func (g *generator) moves(f *frame) bool {
	if len(f.data) < ethLen {
		return false
	}
	_, moves := g.network.teaches(f)
	return moves
}

func one[T any](g *generator, from []T) T { return from[g.IntN(len(from))] }

// chance is true n times of 100.
func (g *generator) chance(n int) bool { return g.IntN(100) < n }

func (g *generator) randomMAC() (m mac) {
	for i := range m {
		m[i] = byte(g.IntN(256))
	}
	m[0] = m[0]&^1 | 2
	return m
}

// size of a frame: often one at which something changes.
func (g *generator) size() int {
	if g.chance(50) {
		return one(g, []int{60, 61, 64, 65, 127, 128, 590, 1024, 1293, 1294, 1295, 1298, 1299, 1500, 1513, 1514})
	}
	return 60 + g.IntN(1514-60+1)
}

// payload gives n bytes with the number of the frame, if there is room.
func (g *generator) payload(n int) []byte {
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], g.filler.Uint64())
	}
	if n >= len(serialMagic)+8 {
		copy(b, serialMagic)
		binary.BigEndian.PutUint64(b[len(serialMagic):], g.made)
	}
	return b
}

// serialMagic stands before the number of a frame.
const serialMagic = "#oracle#"

// packet makes an IP packet that fits into a frame of the given size.
func (g *generator) packet(size int) *packet {
	p := &packet{
		v6: g.chance(40), tcp: g.chance(60), from: byte(1 + g.IntN(250)), to: byte(1 + g.IntN(250)),
		ports: [2]uint16{uint16(1024 + g.IntN(60000)), uint16(1024 + g.IntN(60000))}, seq: g.Uint32(),
	}
	p.payload = g.payload(max(0, size-ethLen-p.overhead()))
	return p
}

func (p *packet) ethertype() uint16 {
	if p.v6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

// otherTypes are ethertypes beside IP: some that a host takes an interest in,
// lengths, and any.
var otherTypes = []uint16{0x88b6, unix.ETH_P_ARP, unix.ETH_P_PAE, unix.ETH_P_LLDP, unix.ETH_P_PPP_SES, unix.ETH_P_MPLS_UC, 0x9000, 46, 1500, 0xffff}

// complete makes a whole frame between two addresses, of any type.
func (g *generator) complete(port int, to, from mac, size int) *frame {
	g.made++
	if g.chance(75) {
		p := g.packet(size)
		b := ethernet(to, from, p.ethertype(), p.bytes())
		for len(b) < min(size, 60) {
			b = append(b, 0)
		}
		return &frame{port: port, data: b}
	}
	return &frame{port: port, data: ethernet(to, from, one(g, otherTypes), g.payload(size-ethLen))}
}

// pair gives a port and two stations: one on the port, and one elsewhere.
func (g *generator) pair() (port int, from, to *station) {
	from = g.speaker(func(s *station) bool { return g.network.ports[s.port].up })
	if from == nil {
		return 0, nil, nil
	}
	if g.network.bridging != nil && g.chance(85) {
		v := g.home(from)
		to = g.speaker(func(s *station) bool { return s.port != from.port && s.vlan == v })
	}
	if to == nil {
		to = g.speaker(func(s *station) bool { return s.port != from.port })
	}
	if to == nil {
		return 0, nil, nil
	}
	return from.port, from, to
}

func (g *generator) known() *frame {
	port, from, to := g.pair()
	if from == nil {
		return nil
	}
	return g.complete(port, to.mac, from.mac, g.size())
}

// runt makes frames that are shorter than Ethernet's, as short as a device takes.
func (g *generator) runt() *frame {
	port, from, to := g.pair()
	if from == nil {
		return nil
	}
	g.made++
	size := one(g, []int{14, 15, 18, 21, 22, 25, 26, 33, 34, 42, 59, 14 + g.IntN(46)})
	types := append([]uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}, otherTypes...)
	return &frame{port: port, data: ethernet(to.mac, from.mac, one(g, types), g.payload(size-ethLen))}
}

// oversize makes frames longer than Ethernet's, often by just so much that they
// fit a port, and as long as a device takes.
func (g *generator) oversize() *frame {
	port, from, to := g.pair()
	if from == nil {
		return nil
	}
	size := one(g, []int{1515, 1516, 1518, 1519, 1522, 2000, 3000, 9014, 9015, 9018, 9019, 1515 + g.IntN(8000)})
	if port == uplink {
		size = min(size, g.network.mtus[uplink]+ethLen)
	} else if g.chance(20) {
		size = one(g, []int{16000, 32768, 65000, 65535, 65549, 9000 + g.IntN(56000)})
	}
	return g.complete(port, to.mac, from.mac, size)
}

func (g *generator) group() *frame {
	port, from, _ := g.pair()
	if from == nil {
		return nil
	}
	to := one(g, []mac{
		broadcast, {1, 0, 0x5e, 0, 0, 1}, {1, 0, 0x5e, 0x7f, 0xff, 0xfa}, {0x33, 0x33, 0, 0, 0, 1},
		{0x33, 0x33, 0xff, 1, 2, 3}, {3, 1, 2, 3, 4, 5}, g.groups()[0], g.groups()[1],
	})
	return g.complete(port, to, from.mac, g.size())
}

// groups are the multicast groups that guests join.
func (g *generator) groups() []mac { return []mac{{1, 0, 0x5e, 1, 1, 1}, {1, 0, 0x5e, 1, 1, 2}} }

// linkLocal makes frames for addresses that bridges don't forward, or not all.
func (g *generator) linkLocal() *frame {
	port, from, _ := g.pair()
	if from == nil {
		return nil
	}
	g.made++
	to := mac{1, 0x80, 0xc2, 0, 0, one(g, []byte{0, 1, 2, 3, 0x0e, 0x0f, 0x10, 0x20, 0x21})}
	return &frame{port: port, data: ethernet(to, from.mac, one(g, []uint16{0x88b6, unix.ETH_P_LLDP, 60}), g.payload(46+g.IntN(100)))}
}

func (g *generator) unknown() *frame {
	port, from, _ := g.pair()
	if from == nil {
		return nil
	}
	to := g.randomMAC()
	if g.chance(20) {
		to = mac{}
	}
	return g.complete(port, to, from.mac, g.size())
}

// newStation speaks for the first time, in place of another once there are many.
func (g *generator) newStation() *frame {
	port, ok := g.somePort()
	if !ok {
		return nil
	}
	s := &station{mac: g.randomMAC(), port: port}
	g.add(s)
	to := g.speaker(func(o *station) bool { return o.port != port })
	if to == nil || g.chance(30) {
		return g.complete(port, broadcast, s.mac, g.size())
	}
	return g.complete(port, to.mac, s.mac, g.size())
}

func (g *generator) moved() *frame {
	s := g.speaker(func(*station) bool { return true })
	port, ok := g.somePort()
	if s == nil || !ok || s.port == port || g.steady {
		return nil
	}
	s.port = port
	to := g.speaker(func(o *station) bool { return o.port != port })
	if to == nil || g.chance(30) {
		return g.complete(port, broadcast, s.mac, g.size())
	}
	return g.complete(port, to.mac, s.mac, g.size())
}

func (g *generator) badSource() *frame {
	port, from, to := g.pair()
	if from == nil {
		return nil
	}
	if g.chance(10) { // to itself
		return g.complete(port, from.mac, from.mac, g.size())
	}
	bad := []mac{{}, broadcast, {1, 0, 0x5e, 1, 2, 3}, {3, 3, 3, 3, 3, 3}, nicMAC}
	if g.network.ports[1].there { // otherwise its address is anybody's
		bad = append(bad, portMAC(1))
	}
	src := one(g, bad)
	return g.complete(port, to.mac, src, g.size())
}

func (g *generator) forHost() *frame {
	port, from, _ := g.pair()
	if from == nil {
		return nil
	}
	return g.complete(port, portMAC(g.IntN(len(specs))), from.mac, g.size())
}

func (g *generator) samePort() *frame {
	port, from, _ := g.pair()
	if from == nil {
		return nil
	}
	to := g.speaker(func(s *station) bool { return s.port == port })
	return g.complete(port, to.mac, from.mac, g.size())
}

func (g *generator) tagged() *frame {
	f := one(g, []func(*generator) *frame{
		(*generator).known, (*generator).known, (*generator).group, (*generator).partial, (*generator).forHost,
		(*generator).runt, (*generator).segmentation,
	})(g)
	if f == nil {
		return nil
	}
	for range 1 + g.IntN(2) {
		tci := one(g, []uint16{0, 1, 5, 4094, 4095, 0xe005, uint16(g.Uint32())})
		f.push(one(g, []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021Q, unix.ETH_P_8021AD}), tci)
	}
	return f
}

// cutTag makes frames that end within a tag or right behind it.
func (g *generator) cutTag() *frame {
	port, from, to := g.pair()
	if from == nil {
		return nil
	}
	g.made++
	b := ethernet(to.mac, from.mac, one(g, []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD}), g.payload(g.IntN(10)))
	return &frame{port: port, data: b}
}

// offloading is pair for a port that may leave work to the host.
func (g *generator) offloading() (port int, from, to *station) {
	for range 20 {
		if port, from, to = g.pair(); from != nil && !specs[port].complete() {
			return port, from, to
		}
	}
	return 0, nil, nil
}

func (g *generator) partial() *frame {
	port, from, to := g.offloading()
	if from == nil {
		return nil
	}
	g.made++
	p := g.packet(g.size())
	p.partial = true
	f := &frame{port: port, data: ethernet(to.mac, from.mac, p.ethertype(), p.bytes())}
	p.offload(&f.header, ethLen, 0)
	if g.chance(30) {
		binary.NativeEndian.PutUint16(f.header[offHdrLen:], uint16(one(g, []int{14, ethLen + p.ipLen(), ethLen + p.overhead()})))
	}
	return f
}

func (g *generator) segmentation() *frame {
	port, from, to := g.offloading()
	if from == nil {
		return nil
	}
	g.made++
	segment := one(g, []int{536, 1000, 1220, 1400, 1448, 1460})
	p := g.packet(0)
	p.tcp = g.chance(85)
	p.partial, p.ecn = true, p.tcp && g.chance(10)
	p.payload = g.payload(1 + g.IntN(min(40*segment, 65000)))
	f := &frame{port: port, data: ethernet(to.mac, from.mac, p.ethertype(), p.bytes())}
	p.offload(&f.header, ethLen, segment)
	return f
}

func (g *generator) badSum() *frame {
	port, from, to := g.pair()
	if from == nil {
		return nil
	}
	g.made++
	p := g.packet(g.size())
	p.v6, p.badSum = false, true
	return &frame{port: port, data: ethernet(to.mac, from.mac, unix.ETH_P_IP, p.bytes())}
}

// badHeader makes headers that no honest guest sends.
func (g *generator) badHeader() *frame {
	f := g.partial()
	if f == nil {
		return nil
	}
	order := binary.NativeEndian
	switch g.IntN(5) {
	case 0:
		order.PutUint16(f.header[offStart:], uint16(len(f.data)+g.IntN(10)))
	case 1:
		order.PutUint16(f.header[offOffset:], uint16(g.Uint32()))
	case 2:
		// Not UDP in IP fragments (3), which get random numbers.
		f.header[offGSOType] = one(g, []byte{1, 2, 4, 5, 6, 7, 8})
		order.PutUint16(f.header[offGSOSize:], one(g, []uint16{0, 0xffff, uint16(g.IntN(2000))}))
	case 3:
		order.PutUint16(f.header[offHdrLen:], one(g, []uint16{0xffff, uint16(g.IntN(2000))}))
	case 4:
		f.header[offFlags] = dataValid
	}
	return f
}

// scrap makes what is less than Ethernet's header, which no device takes.
func (g *generator) scrap() *frame {
	port, from, to := g.pair()
	if from == nil {
		return nil
	}
	whole := ethernet(to.mac, from.mac, unix.ETH_P_IP, nil)
	return &frame{port: port, data: whole[:g.IntN(len(whole))]}
}

// down makes frames for a guest's port that takes none.
func (g *generator) down() *frame {
	to := g.speaker(func(*station) bool { return true })
	for i, s := range g.network.ports {
		if i != uplink && s.there && !s.up && to != nil {
			return g.complete(i, to.mac, g.randomMAC(), g.size())
		}
	}
	return nil
}

// igmp joins or leaves a group, where the bridge looks at it.
func (g *generator) igmp() *frame {
	port, from, _ := g.pair()
	if from == nil || !g.snooping {
		return nil
	}
	g.made++
	group := one(g, g.groups())
	ip := []byte{224, 0, 0, 0}
	copy(ip[1:], group[3:])
	kind, to := byte(0x16), append([]byte{}, ip...) // IGMPv2: a report goes to its group
	if g.chance(30) {
		kind, to = 0x17, []byte{224, 0, 0, 2} // a leave to all routers
	}
	b := []byte{0x46, 0xc0, 0, 32, 0, 0, 0, 0, 1, unix.IPPROTO_IGMP, 0, 0, 198, 18, 1, byte(1 + g.IntN(250))}
	b = append(b, to...)
	b = append(b, 0x94, 4, 0, 0) // router alert
	binary.BigEndian.PutUint16(b[10:], ^fold(sumOf(b, 0)))
	m := append([]byte{kind, 0, 0, 0}, ip...)
	binary.BigEndian.PutUint16(m[2:], ^fold(sumOf(m, 0)))
	dst := mac{1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]}
	return &frame{port: port, data: append(ethernet(dst, from.mac, unix.ETH_P_IP, append(b, m...)), make([]byte, 14)...)}
}
