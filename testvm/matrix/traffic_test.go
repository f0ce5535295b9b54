package matrix

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// A traffic is a kind of frames.
type traffic struct {
	name    string
	v6, udp bool
	size    int // of a frame's payload, in bytes
	// partial leaves the checksum of the (inner) transport header to the host,
	// and segment, in bytes, makes it cut the frame as well. 0: it is whole.
	partial bool
	segment int
	// port is the source's, which tells cells apart.
	port uint16
	// tunnel wraps it in VXLAN, outer6 over IPv6.
	tunnel, outer6 bool
}

// kinds are the frames of each cell. Sizes are for an MTU of 1500.
var kinds = []traffic{
	{name: "complete TCPv4", size: 800},
	{name: "complete TCPv6", size: 800, v6: true},
	{name: "complete UDPv4", size: 800, udp: true},
	{name: "complete UDPv6", size: 800, udp: true, v6: true},
	{name: "complete VXLAN", size: 800, tunnel: true},
	{name: "partial TCPv4", size: 800, partial: true},
	{name: "partial TCPv6", size: 800, partial: true, v6: true},
	{name: "partial UDPv4", size: 800, partial: true, udp: true},
	{name: "partial UDPv6", size: 800, partial: true, udp: true, v6: true},
	{name: "partial VXLAN", size: 800, partial: true, tunnel: true},
	{name: "GSO TCPv4", size: 20000, partial: true, segment: 1400},
	{name: "GSO TCPv6", size: 20000, partial: true, segment: 1400, v6: true},
	// Shorter than the MTU, so that only the header tells them from whole frames.
	{name: "short GSO TCPv4", size: 1300, partial: true, segment: 500},
	{name: "short GSO UDPv4", size: 1300, partial: true, segment: 500, udp: true},
	{name: "GSO UDPv4", size: 20000, partial: true, segment: 1200, udp: true},
	{name: "GSO UDPv6", size: 20000, partial: true, segment: 1200, udp: true, v6: true},
	{name: "GSO VXLAN over IPv4", size: 20000, partial: true, segment: 1300, tunnel: true},
	{name: "GSO VXLAN over IPv6", size: 20000, partial: true, segment: 1300, tunnel: true, outer6: true},
}

// The fields of a virtio-net header, struct virtio_net_hdr_v1_hash_tunnel
// (Linux 6.17), of which older kernels have the first 12 bytes.
const (
	hdrLen       = 24
	offFlags     = 0
	offGSOType   = 1
	offHdrLen    = 2
	offSegment   = 4
	offStart     = 6
	offOffset    = 8
	offOuterTh   = 20
	offInnerNh   = 22
	gsoTunnel4   = 0x20
	gsoTunnel6   = 0x40
	vxlanPort    = 4789
	ethernetLen  = 14
	vxlanNetwork = 7
)

type frame struct {
	header [hdrLen]byte
	data   []byte
}

func (f frame) equal(other frame) bool {
	return f.header == other.header && bytes.Equal(f.data, other.data)
}

// A station is one end of the traffic.
type station struct {
	mac    net.HardwareAddr
	v4, v6 net.IP
}

// frames makes n frames from one station to another, and tells the payload.
func (k traffic) frames(from, to station, n int) (frames []frame, payload [][]byte) {
	rng := rand.NewChaCha8([32]byte{byte(n), byte(k.size)})
	seq := uint32(0xffffe000) // wraps soon
	for range n {
		b := make([]byte, k.size)
		_, _ = rng.Read(b)
		frames = append(frames, k.frame(from, to, seq, b))
		seq += uint32(len(b))
		for len(b) > 0 {
			m := len(b)
			if k.segment != 0 {
				m = min(m, k.segment)
			}
			payload, b = append(payload, b[:m]), b[m:]
		}
	}
	return frames, payload
}

// frame makes one frame.
func (k traffic) frame(from, to station, seq uint32, payload []byte) (f frame) {
	inner := k.packet(from, to, seq)
	before := []gopacket.SerializableLayer{}
	if k.tunnel {
		udp := &layers.UDP{SrcPort: 49152, DstPort: vxlanPort}
		before = append(ip(from, to, k.outer6, layers.IPProtocolUDP, udp), udp,
			&layers.VXLAN{ValidIDFlag: true, VNI: vxlanNetwork})
		before = append([]gopacket.SerializableLayer{ethernet(from, to, k.outer6)}, before...)
	}
	all := append(append(before, inner...), gopacket.Payload(payload))
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		panic(err)
	}
	f.data = buffer.Bytes()
	outerTransport := ethernetLen + ipLen(k.outer6)
	if k.tunnel { // without a checksum, as VXLAN over IPv4 is by default
		binary.BigEndian.PutUint16(f.data[outerTransport+6:], 0)
	}
	if k.partial {
		k.leave(&f, len(f.data)-len(payload))
	}
	return f
}

// leave leaves the frame's checksum and segmentation to whoever takes it.
func (k traffic) leave(f *frame, headers int) {
	var (
		order = binary.NativeEndian
		l4    = map[bool]int{false: 20, true: 8}[k.udp]
		at    = map[bool]int{false: 16, true: 6}[k.udp]
		start = headers - l4
		l3    = start - ipLen(k.v6)
	)
	f.header[offFlags] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	order.PutUint16(f.header[offStart:], uint16(start))
	order.PutUint16(f.header[offOffset:], uint16(at))
	binary.BigEndian.PutUint16(f.data[start+at:], fold(pseudo(f.data[l3:start], k.v6, len(f.data)-start)))
	if k.segment == 0 {
		return
	}
	f.header[offGSOType] = unix.VIRTIO_NET_HDR_GSO_TCPV4
	switch {
	case k.udp:
		f.header[offGSOType] = unix.VIRTIO_NET_HDR_GSO_UDP_L4
	case k.v6:
		f.header[offGSOType] = unix.VIRTIO_NET_HDR_GSO_TCPV6
	}
	order.PutUint16(f.header[offHdrLen:], uint16(headers))
	order.PutUint16(f.header[offSegment:], uint16(k.segment))
	if k.tunnel {
		f.header[offGSOType] |= map[bool]byte{false: gsoTunnel4, true: gsoTunnel6}[k.outer6]
		binary.LittleEndian.PutUint16(f.header[offOuterTh:], uint16(ethernetLen+ipLen(k.outer6)))
		binary.LittleEndian.PutUint16(f.header[offInnerNh:], uint16(l3))
	}
}

// packet gives the layers of the (inner) packet.
func (k traffic) packet(from, to station, seq uint32) []gopacket.SerializableLayer {
	head := []gopacket.SerializableLayer{ethernet(from, to, k.v6)}
	if k.udp {
		udp := &layers.UDP{SrcPort: layers.UDPPort(k.port), DstPort: 5002}
		return append(append(head, ip(from, to, k.v6, layers.IPProtocolUDP, udp)...), udp)
	}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(k.port), DstPort: 5002, Seq: seq, Ack: 1, ACK: true, Window: 0xffff}
	return append(append(head, ip(from, to, k.v6, layers.IPProtocolTCP, tcp)...), tcp)
}

func ethernet(from, to station, v6 bool) gopacket.SerializableLayer {
	e := &layers.Ethernet{SrcMAC: from.mac, DstMAC: to.mac, EthernetType: layers.EthernetTypeIPv4}
	if v6 {
		e.EthernetType = layers.EthernetTypeIPv6
	}
	return e
}

// ip gives the network layer for a transport.
func ip(from, to station, v6 bool, protocol layers.IPProtocol, transport interface {
	SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
}) []gopacket.SerializableLayer {
	if v6 {
		l := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: from.v6, DstIP: to.v6}
		_ = transport.SetNetworkLayerForChecksum(l)
		return []gopacket.SerializableLayer{l}
	}
	l := &layers.IPv4{Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: protocol, SrcIP: from.v4, DstIP: to.v4}
	_ = transport.SetNetworkLayerForChecksum(l)
	return []gopacket.SerializableLayer{l}
}

func ipLen(v6 bool) int {
	if v6 {
		return 40
	}
	return 20
}
