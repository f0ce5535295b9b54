package lab

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
)

// relay carries frames between two taps in both directions, virtio-net header
// included, as QEMU does between a host's tap and a guest's network device.
type relay struct {
	toGuest, toHost way
	running         sync.WaitGroup
}

// way is one direction of a relay.
type way struct {
	frames, bytes, lost atomic.Uint64
}

// RelayCounters counts what passed between a guest and its host's tap in one
// direction.
type RelayCounters struct {
	Frames uint64
	Bytes  uint64 // of frames, without virtio-net headers
	Lost   uint64 // frames that the receiving device refused, as it was down
}

func (w *way) counters() RelayCounters {
	return RelayCounters{Frames: w.frames.Load(), Bytes: w.bytes.Load(), Lost: w.lost.Load()}
}

// start carries frames until the taps are closed.
func (r *relay) start(host, guest *Tap) {
	r.running.Go(func() { r.toGuest.carry(guest, host) })
	r.running.Go(func() { r.toHost.carry(host, guest) })
}

// wait waits until both directions have ended, after the taps were closed.
func (r *relay) wait() { r.running.Wait() }

func (w *way) carry(to, from *Tap) {
	frame := make([]byte, VnetHdrLen+MaxFrameLen)
	for {
		n, err := from.Read(frame)
		if err != nil {
			return // the tap is closed, or its device was removed
		}
		if _, err := to.Write(frame[:n]); err != nil {
			if errors.Is(err, os.ErrClosed) {
				return
			}
			w.lost.Add(1)
			continue
		}
		w.frames.Add(1)
		w.bytes.Add(uint64(n - VnetHdrLen))
	}
}
