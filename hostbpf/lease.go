package hostbpf

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// jiffiesPerSecond is the kernel's CONFIG_HZ. The coarse clocks tick with it,
// and tell their resolution even where the kernel's configuration is not at hand.
func jiffiesPerSecond() (uint64, error) {
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		return 0, fmt.Errorf("reading the length of a jiffy: %w", err)
	}
	if res.Nano() <= 0 {
		return 0, fmt.Errorf("reading the length of a jiffy: got %d ns", res.Nano())
	}
	return uint64(math.Round(1e9 / float64(res.Nano()))), nil
}

// A lease lets the datapath act until its deadline.
type lease struct {
	control *hooksSwitchControl
	program *ebpf.Program // renew
	hz      uint64
	renewed time.Time
}

func (l *lease) jiffies(d time.Duration) uint64 {
	return uint64(d.Seconds() * float64(l.hz))
}

// renew lets the datapath act for d from now on.
func (l *lease) renew(d time.Duration) error {
	atomic.StoreUint32(&l.control.Lease, uint32(l.jiffies(d)))
	frame := make([]byte, 64) // XDP programs are not run on less than an Ethernet header
	if _, err := l.program.Run(&ebpf.RunOptions{Data: frame}); err != nil {
		return fmt.Errorf("renewing the datapath's deadline: %w", err)
	}
	l.renewed = time.Now()
	return nil
}

// expire makes every frame pass from now on.
func (l *lease) expire() { atomic.StoreUint64(&l.control.Deadline, 0) }

// now gives the low half of jiffies. It is behind by some jiffies at most.
func (l *lease) now() uint32 {
	return uint32(atomic.LoadUint64(&l.control.Renewed)) + uint32(l.jiffies(time.Since(l.renewed)))
}

// age tells how long ago a fdb_entry was last seen; ok is false if it never was.
// It is right to some tenths of a second.
func (l *lease) age(seen uint32) (age time.Duration, ok bool) {
	if seen == 0 {
		return 0, false
	}
	ticks := int32(l.now() - seen)
	return max(0, time.Duration(ticks)*time.Second/time.Duration(l.hz)), true
}
