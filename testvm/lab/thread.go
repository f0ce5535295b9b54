package lab

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// goThread runs f in a goroutine locked to a thread which is never the
// process's first one: /proc/self describes that one, and it can't end. If f
// leaves the goroutine locked, the thread ends with it.
func goThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// As long as this goroutine holds the first thread, another gets another.
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(started)
			f()
		}()
		<-started
		runtime.UnlockOSThread()
	}()
}
