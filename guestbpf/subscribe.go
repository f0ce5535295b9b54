package guestbpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// eventBuffer is how much news the kernel keeps for a reader that is busy, in bytes; what
// is beyond is lost, and everything is listed again.
const eventBuffer = 8 << 20

// A subscription is to news from rtnetlink.
type subscription struct {
	file   *os.File
	buffer []byte
}

// errLost says that news was lost.
var errLost = errors.New("news from the kernel was lost")

func subscribe(groups ...int) (*subscription, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, syscall.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Without an address of its own the socket would get nothing.
	err = syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK})
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
	}
	for _, g := range groups {
		// A group that an old kernel does not have has no news.
		if e := syscall.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err == nil && e != syscall.EINVAL {
			err = e
		}
	}
	if err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("subscribing to news from the kernel: %w", err)
	}
	return &subscription{file: os.NewFile(uintptr(fd), "rtnetlink"), buffer: make([]byte, rtnetlinkReply)}, nil
}

func (s *subscription) close() { s.file.Close() }

// wait returns when there is news, after d, or when ctx ends; it is no error.
func (s *subscription) wait(ctx context.Context, d time.Duration) error {
	if err := s.file.SetReadDeadline(time.Now().Add(d)); err != nil {
		return fmt.Errorf("waiting for news from the kernel: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) })()
	c, err := s.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("waiting for news from the kernel: %w", err)
	}
	err = c.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), nil, syscall.MSG_PEEK)
		return err != syscall.EAGAIN
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("waiting for news from the kernel: %w", err)
	}
	return nil
}

// drain gives all the news that there is. The error is errLost if some was lost.
func (s *subscription) drain(each func(m syscall.NetlinkMessage)) error {
	c, err := s.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("reading news from the kernel: %w", err)
	}
	lost := false
	var fail error
	err = c.Control(func(fd uintptr) {
		for {
			n, _, err := syscall.Recvfrom(int(fd), s.buffer, 0)
			switch err {
			case nil:
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return
			case syscall.ENOBUFS:
				lost = true
				continue
			default:
				fail = os.NewSyscallError("recvfrom", err)
				return
			}
			messages, err := syscall.ParseNetlinkMessage(s.buffer[:n])
			if err != nil {
				lost = true
				continue
			}
			for _, m := range messages {
				each(m)
			}
		}
	})
	if err := errors.Join(err, fail); err != nil {
		return fmt.Errorf("reading news from the kernel: %w", err)
	}
	if lost {
		return errLost
	}
	return nil
}
