package mix

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// Streams are TCP connections from one station to another, as bare sockets: the
// loads wait for many of them at once by an epoll of their own, or block in a
// thread, and don't pass through Go's poller on each frame.
type streams struct {
	from, to []int
}

// connect makes n connections.
func connect(from, to *lab.Node, v6 bool, n int) (_ *streams, err error) {
	s := &streams{}
	defer func() {
		if err != nil {
			s.close()
			err = fmt.Errorf("connecting %s with %s: %w", from.Name(), to.Name(), err)
		}
	}()
	addr, err := to.Addr(v6)
	if err != nil {
		return nil, err
	}
	listener, err := listen(to, addr)
	if err != nil {
		return nil, err
	}
	defer unix.Close(listener)
	local, err := unix.Getsockname(listener)
	if err != nil {
		return nil, fmt.Errorf("asking for the port: %w", err)
	}
	err = from.Do(func() error {
		for range n {
			fd, err := newSocket(addr)
			if err != nil {
				return err
			}
			s.from = append(s.from, fd)
			if err := retry(func() error { return unix.Connect(fd, local) }); err != nil {
				return err
			}
			var peer int
			if err := retry(func() (err error) {
				peer, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
				return err
			}); err != nil {
				return err
			}
			s.to = append(s.to, peer)
			if err := setUp(peer); err != nil {
				return err
			}
		}
		return nil
	})
	return s, err
}

func listen(n *lab.Node, addr netip.Addr) (fd int, err error) {
	err = n.Do(func() error {
		if fd, err = newSocket(addr); err != nil {
			return err
		}
		if err := errors.Join(unix.Bind(fd, sockaddr(addr)), unix.Listen(fd, 1024)); err != nil {
			unix.Close(fd)
			return fmt.Errorf("listening on %v: %w", addr, err)
		}
		return nil
	})
	return fd, err
}

// newSocket gives a TCP socket of the address's family, in the thread's namespace.
func newSocket(addr netip.Addr) (int, error) {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("making a socket: %w", err)
	}
	return fd, setUp(fd)
}

// setUp makes a socket send at once what it is given, and end without ceremony.
func setUp(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
}

func sockaddr(addr netip.Addr) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4()}
	}
	return &unix.SockaddrInet6{Addr: addr.As16()}
}

// retry repeats a system call that a signal broke off; Go's scheduler sends them.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// end makes all reads and writes return.
func (s *streams) end() {
	for _, fd := range append(s.from, s.to...) {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // its peer's may have ended it
	}
}

// close frees the sockets, which nobody may use any more.
func (s *streams) close() {
	for _, fd := range append(s.from, s.to...) {
		unix.Close(fd)
	}
}

// serve calls ready for each socket that has something to read, until that says
// that it is enough.
func serve(fds []int, ready func(i int) bool) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("making an epoll: %w", err)
	}
	defer unix.Close(epoll)
	for i, fd := range fds {
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return fmt.Errorf("adding a socket to an epoll: %w", err)
		}
	}
	events := make([]unix.EpollEvent, 128)
	for {
		var n int
		if err := retry(func() (err error) {
			n, err = unix.EpollWait(epoll, events, -1)
			return err
		}); err != nil {
			return fmt.Errorf("waiting for sockets: %w", err)
		}
		for _, e := range events[:n] {
			if !ready(int(e.Fd)) {
				return nil
			}
		}
	}
}
