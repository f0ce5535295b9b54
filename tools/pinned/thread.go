// Package pinned runs functions on threads that stay on one CPU, so that what is
// measured on one does not disturb the other.
package pinned

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Go calls f on a thread of its own that is pinned to a CPU, and gives a channel
// on which f's error will come. The thread ends with f. The error is about the
// CPU: it does not exist, or this process may not use it; f is not called then.
func Go(cpu int, f func() error) (done <-chan error, err error) {
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends the thread with the goroutine, and
		// nobody else gets one that is pinned.
		runtime.LockOSThread()
		var set unix.CPUSet
		set.Set(cpu)
		err := unix.SchedSetaffinity(0, &set)
		started <- err
		if err == nil {
			ended <- f()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("pinning a thread to CPU %d (is it there, and allowed to this process?): %w", cpu, err)
	}
	return ended, nil
}
