package mix

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// bulkChunk is how many bytes a bulk sender hands the kernel at once.
const bulkChunk = 128 << 10

// Bulk is streams that send as fast as TCP lets them.
type bulk struct {
	window
	*streams
	running  sync.WaitGroup
	received atomic.Uint64
	before   uint64
	payload  uint64
}

var _ load = (*bulk)(nil)

func startBulk(from, to *lab.Node, v6 bool, n int) (*bulk, error) {
	s, err := connect(from, to, v6, n)
	if err != nil {
		return nil, err
	}
	b := &bulk{streams: s}
	for i := range n {
		b.running.Go(func() {
			chunk := make([]byte, bulkChunk)
			for {
				if _, err := unix.Write(s.from[i], chunk); err != nil && !errors.Is(err, unix.EINTR) {
					return
				}
			}
		})
		b.running.Go(func() {
			chunk := make([]byte, bulkChunk)
			for {
				got, err := unix.Read(s.to[i], chunk)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil || got == 0 {
					return
				}
				b.received.Add(uint64(got))
			}
		})
	}
	return b, nil
}

func (b *bulk) begin() {
	b.window.begin()
	b.before = b.received.Load()
}

func (b *bulk) end() {
	b.payload = b.received.Load() - b.before
	b.window.end()
}

func (b *bulk) report(f Figures) { f[Goodput] = 8 * b.perSecond(b.payload) / 1e6 }

func (b *bulk) close() error {
	b.streams.end()
	b.running.Wait()
	b.streams.close()
	return nil
}
