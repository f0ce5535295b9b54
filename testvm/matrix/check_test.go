package matrix

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errOther is about a frame that is none of the test's.
var errOther = errors.New("neither TCP nor UDP")

// A piece is the payload of a packet that came out.
type piece struct {
	udp     bool
	port    uint16 // of the source, which tells cells apart
	seq     uint32 // of TCP
	payload []byte
}

// check verifies all checksums of a frame that came out, after having done what
// its header leaves to the receiver, and gives its payload as the packets that
// the receiver would see.
func (f frame) check() ([]piece, error) {
	order := binary.NativeEndian
	data := append([]byte(nil), f.data...)
	if f.header[offFlags]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
		start, at := int(order.Uint16(f.header[offStart:])), int(order.Uint16(f.header[offOffset:]))
		if start+at+2 > len(data) {
			return nil, fmt.Errorf("the checksum's place is at %d of %d bytes", start+at, len(data))
		}
		sum := ^fold(sumOf(data[start:], 0))
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(data[start+at:], sum)
	}
	p, err := packetIn(data)
	if err != nil {
		return nil, err
	}
	segment := int(order.Uint16(f.header[offSegment:]))
	if f.header[offGSOType] == unix.VIRTIO_NET_HDR_GSO_NONE {
		return []piece{p}, nil
	}
	if segment == 0 {
		return nil, errors.New("segments of 0 bytes")
	}
	var pieces []piece
	for rest := p.payload; len(rest) > 0; {
		n := min(segment, len(rest))
		pieces = append(pieces, piece{udp: p.udp, port: p.port, seq: p.seq + uint32(len(p.payload)-len(rest)), payload: rest[:n]})
		rest = rest[n:]
	}
	return pieces, nil
}

// packetIn verifies the checksums of a whole frame, and gives what the innermost
// packet carries.
func packetIn(b []byte) (p piece, err error) {
	if len(b) < ethernetLen {
		return p, errors.New("no Ethernet header")
	}
	v6 := false
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_IP:
	case unix.ETH_P_IPV6:
		v6 = true
	default:
		return p, errOther
	}
	b = b[ethernetLen:]
	if len(b) < ipLen(v6) {
		return p, errors.New("no IP header")
	}
	headerLen := ipLen(true)
	if !v6 {
		headerLen = int(b[0]&0xf) * 4
	}
	if len(b) < headerLen {
		return p, errors.New("no whole IP header")
	}
	var (
		header   = b[:headerLen]
		length   = int(binary.BigEndian.Uint16(b[2:])) - headerLen
		protocol = header[9]
	)
	if v6 {
		length, protocol = int(binary.BigEndian.Uint16(b[4:])), header[6]
	} else if fold(sumOf(header, 0)) != 0xffff {
		return p, errors.New("the IP header's checksum is wrong")
	}
	b = b[len(header):]
	if length < 8 || length > len(b) {
		return p, fmt.Errorf("the IP packet has %d bytes, and its header says %d", len(b), length)
	}
	b = b[:length]
	port := binary.BigEndian.Uint16(b)
	sum := fold(sumOf(b, pseudo(header, v6, len(b))))
	switch protocol {
	case unix.IPPROTO_TCP:
		if sum != 0xffff {
			return p, errors.New("the TCP checksum is wrong")
		}
		return piece{port: port, seq: binary.BigEndian.Uint32(b[4:]), payload: b[int(b[12]>>4)*4:]}, nil
	case unix.IPPROTO_UDP:
		tunnel := binary.BigEndian.Uint16(b[2:]) == vxlanPort
		if none := binary.BigEndian.Uint16(b[6:]) == 0; sum != 0xffff && (!none || !tunnel) {
			return p, errors.New("the UDP checksum is wrong")
		}
		if int(binary.BigEndian.Uint16(b[4:])) != len(b) {
			return p, errors.New("the UDP length is wrong")
		}
		if tunnel {
			return packetIn(b[16:])
		}
		return piece{udp: true, port: port, payload: b[8:]}, nil
	}
	return p, errOther
}

// pseudo adds up the pseudo-header of a transport of a length.
func pseudo(ip []byte, v6 bool, length int) uint32 {
	if v6 {
		return sumOf(ip[8:40], uint32(ip[6])+uint32(length))
	}
	return sumOf(ip[12:20], uint32(ip[9])+uint32(length))
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
