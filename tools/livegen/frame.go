package livegen

import "encoding/binary"

const (
	ethernetHeader = 14
	ipHeader       = 20
	tcpHeader      = 20
	// MinFrame is the shortest Ethernet frame, in bytes, without the 4 of its
	// FCS: what benchmarks call a 64-byte frame.
	MinFrame = 60
)

// UDPFrame makes an IPv4/UDP frame of the given size in bytes, from the
// destination address on, without FCS; the least is MinFrame. Its addresses are
// of 198.18.0.0/15, which is set aside for benchmarks. The IP checksum is right,
// because br_netfilter drops frames where it isn't; there is no UDP checksum, so
// that a program may write into the payload.
func UDPFrame(dest, source [6]byte, size int) []byte {
	f, udp := ipFrame(dest, source, size, 17)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	return f
}

// TCPFrame makes an IPv4/TCP frame like UDPFrame's, an acknowledgement with zeros
// behind it. Its TCP checksum is not made.
func TCPFrame(dest, source [6]byte, size int) []byte {
	f, tcp := ipFrame(dest, source, size, 6)
	tcp[12] = tcpHeader / 4 << 4
	tcp[13] = 0x10 // ACK
	return f
}

// ipFrame makes an IPv4 frame, and gives its part behind the IP header too, in which
// both ports are set.
func ipFrame(dest, source [6]byte, size int, protocol byte) (f, payload []byte) {
	f = make([]byte, max(size, MinFrame))
	copy(f, dest[:])
	copy(f[6:], source[:])
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	ip := f[ethernetHeader:]
	ip[0] = 4<<4 | ipHeader/4
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[8] = 64 // TTL
	ip[9] = protocol
	copy(ip[12:], []byte{198, 18, 0, 1})
	copy(ip[16:], []byte{198, 19, 0, 1})
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:ipHeader]))
	payload = ip[ipHeader:]
	binary.BigEndian.PutUint16(payload[0:], 9) // discard
	binary.BigEndian.PutUint16(payload[2:], 9)
	return f, payload
}

// sum gives the one's complement sum of b, which has an even number of bytes.
func sum(b []byte) uint16 {
	var s uint32
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	s = s>>16 + s&0xffff
	return uint16(s + s>>16)
}
