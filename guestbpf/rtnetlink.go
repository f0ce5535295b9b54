package guestbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// What the syscall package has no names for.
const (
	solNetlink     = 270
	netlinkCapAck  = 10
	netlinkExtAck  = 11
	flagCapped     = 0x100
	flagAckTLVs    = 0x200
	attrMessage    = 1 // NLMSGERR_ATTR_MSG
	attrNested     = 0x8000
	attrNexthop    = 30 // RTA_NH_ID
	attrXDP        = 43 // IFLA_XDP
	xdpFD          = 1
	xdpAttached    = 2
	xdpFlags       = 3
	xdpProgID      = 4
	xdpExpectedFD  = 8
	xdpIfNoExist   = 1 << 0
	xdpDriverMode  = 1 << 2
	xdpReplace     = 1 << 4
	sizeofIfinfo   = syscall.SizeofIfInfomsg
	sizeofHeader   = syscall.SizeofNlMsghdr
	sizeofAttr     = syscall.SizeofRtAttr
	rtnetlinkReply = 1 << 16

	flagDumpInterrupted = 0x10
)

// An extackError is the kernel's no, with the driver's words if it has some.
type extackError struct {
	errno syscall.Errno
	words string
}

func (e *extackError) Error() string {
	if e.words == "" {
		return e.errno.Error()
	}
	return fmt.Sprintf("%s (%v)", e.words, e.errno)
}

func (e *extackError) Unwrap() error { return e.errno }

// request sends one message to rtnetlink and gives the reply's payload; none if
// there is an acknowledgement alone.
func request(kind, flags uint16, payload []byte) ([]byte, error) {
	s, err := openNetlink()
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.send(kind, flags, payload); err != nil {
		return nil, err
	}
	messages, err := s.receive()
	if err != nil {
		return nil, err
	}
	if messages[0].Header.Type != syscall.NLMSG_ERROR {
		return messages[0].Data, nil
	}
	return nil, acknowledgement(messages[0])
}

// errInterrupted says that what was dumped has changed meanwhile.
var errInterrupted = errors.New("what was listed changed meanwhile")

const dumpTries = 100

// dump asks rtnetlink for all of a kind, and again if it changes meanwhile: each is
// called from then on for a new list, which reset announces.
func dump(kind uint16, payload []byte, reset func(), each func(m syscall.NetlinkMessage)) error {
	for range dumpTries {
		reset()
		if err := dumpOnce(kind, payload, each); !errors.Is(err, errInterrupted) {
			return err
		}
	}
	return errInterrupted
}

func dumpOnce(kind uint16, payload []byte, each func(m syscall.NetlinkMessage)) error {
	s, err := openNetlink()
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.send(kind, syscall.NLM_F_DUMP, payload); err != nil {
		return err
	}
	interrupted := false
	for {
		messages, err := s.receive()
		if err != nil {
			return err
		}
		for _, m := range messages {
			interrupted = interrupted || m.Header.Flags&flagDumpInterrupted != 0
			switch m.Header.Type {
			case syscall.NLMSG_ERROR:
				return acknowledgement(m)
			case syscall.NLMSG_DONE:
				if interrupted {
					return errInterrupted
				}
				return nil
			}
			each(m)
		}
	}
}

// A netlinkSocket talks to rtnetlink, in blocking calls.
type netlinkSocket struct {
	fd     int
	buffer []byte
}

func openNetlink() (*netlinkSocket, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &netlinkSocket{fd: fd, buffer: make([]byte, rtnetlinkReply)}
	for _, option := range []int{netlinkExtAck, netlinkCapAck} {
		if err := syscall.SetsockoptInt(fd, solNetlink, option, 1); err != nil {
			s.close()
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	return s, nil
}

func (s *netlinkSocket) close() { syscall.Close(s.fd) }

func (s *netlinkSocket) send(kind, flags uint16, payload []byte) error {
	m := make([]byte, sizeofHeader, sizeofHeader+len(payload))
	m = append(m, payload...)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], kind)
	binary.NativeEndian.PutUint16(m[6:], syscall.NLM_F_REQUEST|flags)
	return os.NewSyscallError("sendto", syscall.Sendto(s.fd, m, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}))
}

// receive gives at least one message, which is good until the next call.
func (s *netlinkSocket) receive() ([]syscall.NetlinkMessage, error) {
	for {
		n, _, err := syscall.Recvfrom(s.fd, s.buffer, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		messages, err := syscall.ParseNetlinkMessage(s.buffer[:n])
		if err != nil || len(messages) == 0 {
			return nil, fmt.Errorf("reading the kernel's reply of %d bytes: %w", n, err)
		}
		return messages, nil
	}
}

// acknowledgement reads an NLMSG_ERROR.
func acknowledgement(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return fmt.Errorf("reading the kernel's reply: it is cut off")
	}
	errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	if errno == 0 {
		return nil
	}
	e := &extackError{errno: errno}
	// Behind the error comes the header of what was asked, and all of it unless capped.
	if rest := m.Data[4:]; m.Header.Flags&flagAckTLVs != 0 && len(rest) >= sizeofHeader {
		asked := sizeofHeader
		if m.Header.Flags&flagCapped == 0 {
			asked = min(align(int(binary.NativeEndian.Uint32(rest))), len(rest))
		}
		if words, ok := attributes(rest[asked:])[attrMessage]; ok {
			e.words = strings.TrimRight(string(words), "\x00")
		}
	}
	return e
}

func align(n int) int { return (n + 3) &^ 3 }

// attributes reads a row of them; what is cut off is left out.
func attributes(b []byte) map[uint16][]byte {
	found := map[uint16][]byte{}
	for len(b) >= sizeofAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < sizeofAttr || n > len(b) {
			break
		}
		found[binary.NativeEndian.Uint16(b[2:])&^attrNested] = b[sizeofAttr:n]
		b = b[min(align(n), len(b)):]
	}
	return found
}

// attribute writes one.
func attribute(kind uint16, value []byte) []byte {
	b := make([]byte, sizeofAttr, align(sizeofAttr+len(value)))
	b = append(b, value...)
	binary.NativeEndian.PutUint16(b, uint16(len(b)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	return b[:cap(b)]
}

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// ifinfo begins a message about a device.
func ifinfo(ifindex int) []byte {
	b := make([]byte, sizeofIfinfo)
	binary.NativeEndian.PutUint32(b[4:], uint32(ifindex))
	return b
}
