package mix

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// floodSources is from how many addresses a guest sends that floods.
const floodSources = 1_000_000

// A flood is what a guest sends that means harm: short frames from ever other sources,
// to a destination that nobody has.
type flood struct {
	window
	socket  *lab.Packet
	sending sync.WaitGroup
	ended   atomic.Bool
}

var _ load = (*flood)(nil)

func startFlood(from *lab.Guest, rate int) (*flood, error) {
	socket, err := lab.OpenPacket(from.Node, "eth0")
	if err != nil {
		return nil, fmt.Errorf("starting a flood from %s: %w", from.Name(), err)
	}
	socket.Keep(func([]byte) bool { return false })
	f := &flood{socket: socket}
	f.sending.Go(func() { f.send(rate) })
	return f, nil
}

// send keeps to the rate on the average, as datagrams do.
func (f *flood) send(rate int) {
	frame := make([]byte, 60)
	copy(frame, []byte{0x02, 0xff, 0, 0, 0, 1, 0x02, 0xfe})
	frame[12], frame[13] = 0x88, 0xb5 // an EtherType for experiments
	began, sent := time.Now(), 0
	for !f.ended.Load() {
		due := int(time.Since(began).Seconds()*float64(rate)) - sent
		if due > maxArrears {
			sent += due - datagramBatch
			due = datagramBatch
		}
		if due < datagramBatch/4 {
			time.Sleep(50 * time.Microsecond)
			continue
		}
		for range due {
			binary.BigEndian.PutUint32(frame[8:], rand.Uint32N(floodSources))
			if f.socket.Send(frame) != nil {
				return
			}
		}
		sent += due
	}
}

func (f *flood) report(Figures) {}

func (f *flood) close() error {
	f.ended.Store(true)
	f.sending.Wait()
	return f.socket.Close()
}
