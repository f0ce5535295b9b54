package oracle

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// pin keeps the calling goroutine on one CPU until it is undone.
func pin() (undo func()) {
	var all, first unix.CPUSet
	runtime.LockOSThread()
	if unix.SchedGetaffinity(0, &all) != nil {
		return runtime.UnlockOSThread
	}
	for cpu := 0; first.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			first.Set(cpu)
		}
	}
	if unix.SchedSetaffinity(0, &first) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		if unix.SchedSetaffinity(0, &all) == nil { // otherwise the thread ends with its goroutine
			runtime.UnlockOSThread()
		}
	}
}
