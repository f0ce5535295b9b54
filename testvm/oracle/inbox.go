package oracle

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// An Output is a frame that came out of a port, or that reached the host's own
// stack.
type Output struct {
	// Header is its virtio-net header, all zero where there is none.
	Header [vnetLen]byte
	Data   string // from the destination address on
}

// An inbox holds what has come out of one place of a host.
type inbox struct {
	mu      sync.Mutex
	outputs []Output
	marks   map[mark]bool
	// to gets the frames in place of outputs, if it is set. It must not hold on to
	// its argument.
	to func(data []byte)
}

func newInbox() *inbox {
	return &inbox{marks: map[mark]bool{}}
}

// add puts in a frame; marks are kept apart.
func (b *inbox) add(header, data []byte) {
	if ownIGMP(data) {
		return
	}
	m, isMark := parseMark(data)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !isMark && b.to != nil {
		b.to(data)
		return
	}
	if !isMark {
		o := Output{Data: string(data)}
		copy(o.Header[:], header)
		b.outputs = append(b.outputs, o)
		return
	}
	b.marks[m] = true
}

// divert hands all further frames to f, while no other is handed to it.
func (b *inbox) divert(f func(data []byte)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = f
}

// missing gives one of some marks that has not come. If all have, it forgets them and
// all others.
func (b *inbox) missing(marks []mark) (m mark, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range marks {
		if !b.marks[m] {
			return m, true
		}
	}
	clear(b.marks)
	return mark{}, false
}

// take gives all frames that have come, in their order.
func (b *inbox) take() []Output {
	b.mu.Lock()
	defer b.mu.Unlock()
	outputs := b.outputs
	b.outputs = nil
	return outputs
}

// ownIGMP says whether a frame is IGMP without a source address: a bridge sends
// that at times of its own to join the group of all snoopers, and to ask for
// members.
func ownIGMP(f []byte) bool {
	return len(f) >= ethLen+20 && binary.BigEndian.Uint16(f[12:]) == unix.ETH_P_IP &&
		f[ethLen+9] == unix.IPPROTO_IGMP && binary.BigEndian.Uint32(f[ethLen+12:]) == 0
}
