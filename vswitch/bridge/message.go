package bridge

import "golang.org/x/sys/unix"

// Messages and attributes are read in place: a library's decoder copies each, and a
// table of a million entries has ten million of them.

// A message is one of those in a datagram.
type message struct {
	typ, flags uint16
	data       []byte
}

// nextMessage cuts the first message off a datagram.
func nextMessage(b []byte) (m message, rest []byte, ok bool) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, false
	}
	n := native.Uint32(b)
	if n < unix.SizeofNlMsghdr || uint64(n) > uint64(len(b)) {
		return m, nil, false
	}
	m = message{typ: native.Uint16(b[4:]), flags: native.Uint16(b[6:]), data: b[unix.SizeofNlMsghdr:n]}
	return m, b[aligned(int(n), len(b)):], true
}

// err gives the error that ends an answer, or nil.
func (m message) err() error {
	if len(m.data) < 4 {
		return nil
	}
	if errno := -int32(native.Uint32(m.data)); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// nextAttribute cuts the first attribute off others.
func nextAttribute(b []byte) (typ uint16, v, rest []byte, ok bool) {
	if len(b) < unix.SizeofRtAttr {
		return 0, nil, nil, false
	}
	n := int(native.Uint16(b))
	if n < unix.SizeofRtAttr || n > len(b) {
		return 0, nil, nil, false
	}
	return native.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:n], b[aligned(n, len(b)):], true
}

// aligned gives where the next one begins after n bytes of size.
func aligned(n, size int) int { return min((n+3)&^3, size) }

func appendAttributeHeader(b []byte, typ uint16, size int) []byte {
	return native.AppendUint16(native.AppendUint16(b, uint16(unix.SizeofRtAttr+size)), typ)
}
