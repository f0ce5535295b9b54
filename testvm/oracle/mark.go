package oracle

import (
	"encoding/binary"
	"fmt"
)

// A mark is a frame that follows all others of a batch on one way, so that its
// arrival says that they have arrived. Ways differ by the two ports, and by
// whether the bridge carries the frame or the fast path may.
type mark struct {
	round uint32
	from  uint8
	flood bool // as a broadcast, which only the bridge carries
}

func (m mark) String() string {
	kind := "unicast"
	if m.flood {
		kind = "broadcast"
	}
	return fmt.Sprintf("%s mark %d from port %d", kind, m.round, m.from)
}

const (
	markType  = 0x88b5 // for local experiments
	markMagic = "oracle's mark"
	markLen   = 60
)

// frame gives the mark as a frame.
func (m mark) frame(to, from mac) []byte {
	f := make([]byte, 0, markLen)
	f = append(append(f, to[:]...), from[:]...)
	f = binary.BigEndian.AppendUint16(f, markType)
	f = append(f, markMagic...)
	f = binary.BigEndian.AppendUint32(f, m.round)
	f = append(f, m.from, 0)
	if m.flood {
		f[len(f)-1] = 1
	}
	return f[:markLen]
}

func parseMark(f []byte) (m mark, ok bool) {
	const body = ethLen + len(markMagic)
	if len(f) == markLen+4 { // in the management VLAN
		f = append(f[:12:12], f[16:]...)
	}
	if len(f) != markLen || string(f[ethLen:body]) != markMagic {
		return m, false
	}
	return mark{
		round: binary.BigEndian.Uint32(f[body:]),
		from:  f[body+4],
		flood: f[body+5] == 1,
	}, true
}
