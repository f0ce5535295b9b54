package oracle

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// A frame is what the test puts into a port.
type frame struct {
	kind   string
	port   int
	header [vnetLen]byte
	data   []byte
}

// The ways in which a guest may leave work to the host; see struct
// virtio_net_hdr.
const (
	needsCsum  = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoTCP4    = unix.VIRTIO_NET_HDR_GSO_TCPV4
	gsoTCP6    = unix.VIRTIO_NET_HDR_GSO_TCPV6
	gsoUDP     = unix.VIRTIO_NET_HDR_GSO_UDP_L4
	gsoECN     = unix.VIRTIO_NET_HDR_GSO_ECN
	dataValid  = unix.VIRTIO_NET_HDR_F_DATA_VALID
	offFlags   = 0
	offGSOType = 1
	offHdrLen  = 2
	offGSOSize = 4
	offStart   = 6
	offOffset  = 8
)

// cut says whether the frame's tag is. The kernel drops such a frame when it takes
// the tag out, which is between XDP and tc hooks.
func (f *frame) cut() bool {
	return tagType(binary.BigEndian.Uint16(f.data[12:])) && len(f.data) < ethLen+6
}

func tagType(t uint16) bool { return t == unix.ETH_P_8021Q || t == unix.ETH_P_8021AD }

// A packet is an IP packet to be built.
type packet struct {
	v6, tcp  bool
	from, to byte // last bytes of the addresses
	ports    [2]uint16
	seq      uint32
	ecn      bool
	payload  []byte
	// partial leaves the transport checksum to whoever takes the frame.
	partial bool
	// badSum spoils the IP header's checksum.
	badSum bool
}

func (p *packet) ipLen() int {
	if p.v6 {
		return 40
	}
	return 20
}

func (p *packet) transportLen() int {
	if p.tcp {
		return 20
	}
	return 8
}

// overhead is what the headers take.
func (p *packet) overhead() int { return p.ipLen() + p.transportLen() }

// bytes gives the packet from its IP header on.
func (p *packet) bytes() []byte {
	var (
		order    = binary.BigEndian
		length   = p.transportLen() + len(p.payload)
		protocol = byte(unix.IPPROTO_UDP)
		b        = make([]byte, 0, p.ipLen()+length)
		src, dst []byte
	)
	if p.tcp {
		protocol = unix.IPPROTO_TCP
	}
	if p.v6 {
		src = []byte{0x20, 0x01, 0x0d, 0xb8, 15: p.from}
		dst = []byte{0x20, 0x01, 0x0d, 0xb8, 15: p.to}
		b = append(b, 0x60, 0, 0, 0)
		b = order.AppendUint16(b, uint16(length))
		b = append(b, protocol, 64)
		b = append(append(b, src...), dst...)
	} else {
		src, dst = []byte{198, 18, 1, p.from}, []byte{198, 18, 1, p.to}
		b = append(b, 0x45, 0)
		b = order.AppendUint16(b, uint16(20+length))
		b = order.AppendUint16(b, uint16(p.seq))
		b = append(b, 0x40, 0, 64, protocol, 0, 0)
		b = append(append(b, src...), dst...)
		sum := ^fold(sumOf(b, 0))
		if p.badSum {
			sum ^= 0x5555
		}
		order.PutUint16(b[10:], sum)
	}
	t := len(b)
	b = order.AppendUint16(b, p.ports[0])
	b = order.AppendUint16(b, p.ports[1])
	at := t + 6
	if p.tcp {
		at = t + 16
		b = order.AppendUint32(b, p.seq)
		b = order.AppendUint32(b, 1)
		flags := byte(0x10)
		if p.ecn {
			flags |= 0x80
		}
		b = append(b, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	} else {
		b = order.AppendUint16(b, uint16(length))
		b = append(b, 0, 0)
	}
	b = append(b, p.payload...)
	pseudo := sumOf(append(append([]byte{}, src...), dst...), uint32(protocol)+uint32(length))
	if p.partial {
		order.PutUint16(b[at:], fold(pseudo))
		return b
	}
	sum := ^fold(sumOf(b[t:], pseudo))
	if sum == 0 && !p.tcp {
		sum = 0xffff
	}
	order.PutUint16(b[at:], sum)
	return b
}

// offload fills in the header for a partial checksum, and with a segment size
// for segmentation, of the packet behind the given number of bytes.
func (p *packet) offload(header *[vnetLen]byte, before int, segment int) {
	order := binary.NativeEndian
	header[offFlags] = needsCsum
	order.PutUint16(header[offStart:], uint16(before+p.ipLen()))
	order.PutUint16(header[offOffset:], map[bool]uint16{true: 16, false: 6}[p.tcp])
	if segment == 0 {
		return
	}
	switch {
	case !p.tcp:
		header[offGSOType] = gsoUDP
	case p.v6:
		header[offGSOType] = gsoTCP6
	default:
		header[offGSOType] = gsoTCP4
	}
	if p.ecn {
		header[offGSOType] |= gsoECN
	}
	order.PutUint16(header[offHdrLen:], uint16(before+p.overhead()))
	order.PutUint16(header[offGSOSize:], uint16(segment))
}

// sumOf adds up 16-bit words for an Internet checksum.
func sumOf(b []byte, sum uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
		sum = sum&0xffff + sum>>16
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// ethernet puts the addresses and type in front of a body.
func ethernet(to, from mac, ethertype uint16, body []byte) []byte {
	f := make([]byte, 0, ethLen+len(body))
	f = append(append(f, to[:]...), from[:]...)
	f = binary.BigEndian.AppendUint16(f, ethertype)
	return append(f, body...)
}

// tagged puts a VLAN tag into a frame.
func tagged(f []byte, tpid, tci uint16) []byte {
	t := append(make([]byte, 0, len(f)+4), f[:12]...)
	t = binary.BigEndian.AppendUint16(t, tpid)
	t = binary.BigEndian.AppendUint16(t, tci)
	return append(t, f[12:]...)
}

func (f *frame) String() string {
	return fmt.Sprintf("%s into %s, %d bytes, header %x", f.kind, specs[f.port].name, len(f.data), f.header)
}
