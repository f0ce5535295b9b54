package tapsink

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/tapswitch/tapswitch/tools/pinned"
	"golang.org/x/sys/unix"
)

// Options say what the sink is made of.
type Options struct {
	// Taps is how many taps there are; zero means one.
	Taps int
	// Name gives tap i its name; nil leaves names to the kernel.
	Name func(i int) string
	// QueueLen is each tap's queue in frames (txqueuelen); zero leaves the
	// kernel's default, 1000. What doesn't fit is lost.
	QueueLen int
	// CPU is the one that the reader runs on.
	CPU int
}

const (
	// visit is how many frames are read from a tap before the next one's turn.
	visit = 64
	// patience is how many times in a row the reader may find nothing before it
	// sleeps: some milliseconds, which is longer than the pause between bursts
	// usually is. While it does not sleep no sender pays for waking it up.
	patience = 1 << 15
	// nap is the longest sleep in milliseconds, in case nobody wakes it up.
	nap = 10
)

// A Sink reads and counts what comes out of its taps.
//
// One thread reads all of them in turn rather than by epoll, because a tap in an
// epoll set runs a callback in the sender's time for each frame, while a round
// over 256 empty taps costs the reader some 50 µs, on its own CPU.
type Sink struct {
	taps   []Tap
	fds    []int
	counts []atomic.Uint64 // by tap
	total  atomic.Uint64
	stop   atomic.Bool
	wake   int // eventfd that ends a nap
	done   <-chan error
}

// Open makes the taps, sets them up and begins to read. It needs CAP_NET_ADMIN.
func Open(o Options) (*Sink, error) {
	n := max(1, o.Taps)
	s := &Sink{counts: make([]atomic.Uint64, n), wake: -1}
	for i := range n {
		name := ""
		if o.Name != nil {
			name = o.Name(i)
		}
		tap, fd, err := openTap(name, o.QueueLen)
		if err != nil {
			return nil, errors.Join(err, s.closeFiles())
		}
		s.taps, s.fds = append(s.taps, tap), append(s.fds, fd)
	}
	var err error
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("making an eventfd: %w", err), s.closeFiles())
	}
	if s.done, err = pinned.Go(o.CPU, s.read); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	return s, nil
}

// Taps gives the taps, in the order of their counts.
func (s *Sink) Taps() []Tap { return s.taps }

// Frames gives how many frames have been read. It may be called at any time.
func (s *Sink) Frames() uint64 { return s.total.Load() }

// Counts gives how many frames have been read from each tap.
func (s *Sink) Counts() []uint64 {
	counts := make([]uint64, len(s.counts))
	for i := range s.counts {
		counts[i] = s.counts[i].Load()
	}
	return counts
}

// Settle waits until no frame has come for 20 ms.
func (s *Sink) Settle() {
	for before, after := s.Frames(), uint64(0); ; before = after {
		time.Sleep(2 * nap * time.Millisecond)
		if after = s.Frames(); after == before {
			return
		}
	}
}

// Close stops the reader, also in the middle of traffic, and removes the taps.
// The error may be one that the reader met earlier.
func (s *Sink) Close() error {
	s.stop.Store(true)
	// An eventfd takes 8 bytes; it is never full with one writer.
	_, err := unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return errors.Join(err, <-s.done, s.closeFiles())
}

func (s *Sink) closeFiles() (err error) {
	for i, fd := range s.fds {
		if e := unix.Close(fd); e != nil {
			err = errors.Join(err, fmt.Errorf("closing tap %s: %w", s.taps[i].Name, e))
		}
	}
	if s.wake >= 0 {
		err = errors.Join(err, unix.Close(s.wake))
	}
	return err
}

// read reads until the sink is closed.
func (s *Sink) read() error {
	polled := make([]unix.PollFd, 0, len(s.fds)+1)
	for _, fd := range append(s.fds[:len(s.fds):len(s.fds)], s.wake) {
		polled = append(polled, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	buf := make([]byte, 2048) // a longer frame is cut, and counted all the same
	empty := 0
	for !s.stop.Load() {
		found := false
		for i, fd := range s.fds {
			n, err := drain(fd, buf)
			if n > 0 {
				s.counts[i].Add(uint64(n))
				s.total.Add(uint64(n))
				found = true
			}
			if err != 0 {
				return fmt.Errorf("reading from tap %s: %w", s.taps[i].Name, err)
			}
		}
		if found {
			empty = 0
			continue
		}
		if empty += len(s.fds); empty < patience {
			continue
		}
		empty = 0
		if _, err := unix.Poll(polled, nap); err != nil && err != unix.EINTR {
			return fmt.Errorf("waiting for frames: %w", err)
		}
	}
	return nil
}

// drain reads up to a visit's worth of frames. A device that is down or that has
// been removed by somebody else gives none.
//
// The calls bypass the Go scheduler, which costs about as much as reading a
// short frame does. They cannot block.
func drain(fd int, buf []byte) (frames int, err unix.Errno) {
	for frames < visit {
		_, _, err := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		switch err {
		case 0:
			frames++
		case unix.EINTR:
		case unix.EAGAIN, unix.EIO, unix.EBADFD:
			return frames, 0
		default:
			return frames, err
		}
	}
	return frames, 0
}
