package oracle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A feed puts what comes out of a file descriptor into an inbox. Nobody reads while
// frames go in: to be woken for each costs more than the frame.
type feed struct {
	raw syscall.RawConn
	// receive puts one frame into the inbox; EAGAIN means that there is none.
	receive func(fd int) error
	box     *inbox
	mu      sync.Mutex // held by who receives
}

// drain puts all frames into the inbox that have come so far.
func (f *feed) drain() error {
	var err error
	if e := f.raw.Control(func(fd uintptr) { err = f.receiveAll(int(fd)) }); e != nil {
		return e
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

// receiveAll always gives an error.
func (f *feed) receiveAll(fd int) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for err == nil {
		err = f.receive(fd)
	}
	return err
}

// follow puts frames into the inbox as they come, until the file is closed.
func (f *feed) follow() {
	go func() {
		for {
			var err error
			waitErr := f.raw.Read(func(fd uintptr) bool {
				err = f.receiveAll(int(fd))
				return !errors.Is(err, unix.EAGAIN)
			})
			if errors.Join(waitErr, err) != nil {
				return // as whoever awaits a mark sees
			}
		}
	}()
}

// await waits until all the marks have come, and forgets all that have.
func (f *feed) await(ctx context.Context, marks []mark) error {
	for {
		if err := f.drain(); err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		missing, ok := f.box.missing(marks)
		if !ok {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("waiting for the %s: %w", missing, err)
		}
		if err := f.wait(10 * time.Millisecond); err != nil {
			return err
		}
	}
}

// wait waits until there is something to receive, for some time at most.
func (f *feed) wait(atMost time.Duration) error {
	var err error
	if e := f.raw.Control(func(fd uintptr) {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(atMost.Milliseconds()))
	}); e != nil {
		return e
	}
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return os.NewSyscallError("poll", err)
}
