package guestbpf

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// jiffies gives a time in the kernel's ticks. The coarse clocks tell their length even
// where the kernel's configuration is not at hand.
func jiffies(d time.Duration) (uint64, error) {
	var tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil {
		return 0, fmt.Errorf("reading the length of a jiffy: %w", err)
	}
	if tick.Nano() <= 0 {
		return 0, fmt.Errorf("reading the length of a jiffy: got %d ns", tick.Nano())
	}
	return uint64(d.Nanoseconds() / tick.Nano()), nil
}
