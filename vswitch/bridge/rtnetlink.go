package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxDatagram is the size of read buffers: the kernel packs a dump into
// datagrams of at most 32 KiB, and a link event of a NIC stays far below.
const maxDatagram = 64 << 10

// answerTime bounds the wait for an answer. The kernel answers while the
// request is being sent, so only a lost answer takes as long.
const answerTime = 10 * time.Second

var native = binary.NativeEndian

// errInterrupted says that the kernel's tables changed during a dump in a way
// that makes it inconsistent.
var errInterrupted = errors.New("tables changed during the dump")

// A conn is an rtnetlink socket of the network namespace in which it was made,
// whichever thread uses it later.
type conn struct {
	file *os.File
	raw  syscall.RawConn
	seq  uint32
	buf  []byte // for requests and their answers
}

// dial opens a socket that hears the given groups (a bit mask). prepare runs
// before the first message can arrive.
func dial(groups uint32, prepare func(fd int) error) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "rtnetlink")
	fail := func(doing string, err error) (*conn, error) {
		return nil, errors.Join(fmt.Errorf("%s the netlink socket: %w", doing, err), file.Close())
	}
	if prepare != nil {
		if err := prepare(fd); err != nil {
			return fail("preparing", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return fail("binding", err)
	}
	// A socket that is connected to the kernel takes no unicast messages from
	// other processes, so senders need no check.
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail("connecting", err)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return fail("using", err)
	}
	return &conn{file: file, raw: raw}, nil
}

func (c *conn) close() error { return c.file.Close() }

// receive calls f with the bytes, or the error, of each datagram, and waits
// for one if f wants more than there is. f returns false to end; on EAGAIN,
// true means to wait. The bytes are valid until f returns.
func (c *conn) receive(buf []byte, f func(b []byte, err error) bool) error {
	err := c.raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Read(int(fd), buf)
			if err == unix.EINTR {
				continue
			}
			more := f(buf[:max(n, 0)], err)
			if !more {
				return true
			}
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
		}
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// The poller knows no other reason; its own error is not exported.
		return os.ErrClosed
	}
	return err
}

// A message is one netlink message; the data are those of the datagram.
type message struct {
	typ, flags uint16
	seq        uint32
	data       []byte
}

// messages gives the messages of a datagram. One that is cut short ends them,
// and is given as NLMSG_OVERRUN.
func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			n := int(native.Uint32(b))
			if n < unix.SizeofNlMsghdr || n > len(b) {
				yield(message{typ: unix.NLMSG_OVERRUN})
				return
			}
			if !yield(message{
				typ:   native.Uint16(b[4:]),
				flags: native.Uint16(b[6:]),
				seq:   native.Uint32(b[8:]),
				data:  b[unix.SizeofNlMsghdr:n],
			}) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// attributes gives the attributes in b, by number and without the flag bits. A
// malformed one ends them.
func attributes(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			n := int(native.Uint16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				return
			}
			typ := native.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(int(typ), b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// number reads an attribute of 1, 2, 4 or 8 bytes; one of another size is 0.
func number(v []byte) uint64 {
	switch len(v) {
	case 1:
		return uint64(v[0])
	case 2:
		return uint64(native.Uint16(v))
	case 4:
		return uint64(native.Uint32(v))
	case 8:
		return native.Uint64(v)
	}
	return 0
}

// clock reads an attribute in units of USER_HZ, which is 100 per second on
// every architecture that Go runs on.
func clock(v []byte) time.Duration { return time.Duration(number(v)) * (time.Second / 100) }

// appendMessage adds a message with the given body and gives its sequence
// number.
func (c *conn) appendMessage(b []byte, typ, flags uint16, body ...[]byte) ([]byte, uint32) {
	c.seq++
	n := unix.SizeofNlMsghdr
	for _, p := range body {
		n += len(p)
	}
	b = native.AppendUint32(b, uint32(n))
	b = native.AppendUint16(b, typ)
	b = native.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = native.AppendUint32(b, c.seq)
	b = native.AppendUint32(b, 0)
	for _, p := range body {
		b = append(b, p...)
	}
	return append(b, make([]byte, align(n)-n)...), c.seq
}

// appendAttribute adds an attribute of at most 64 KiB, padded.
func appendAttribute(b []byte, typ uint16, v []byte) []byte {
	n := unix.SizeofRtAttr + len(v)
	b = native.AppendUint16(b, uint16(n))
	b = native.AppendUint16(b, typ)
	b = append(b, v...)
	return append(b, make([]byte, align(n)-n)...)
}

// exchange sends requests and calls f with each message of the answer until it
// returns false. Messages that answer earlier requests are left out.
func (c *conn) exchange(requests []byte, first uint32, f func(message) (more bool)) error {
	if c.buf == nil {
		c.buf = make([]byte, maxDatagram)
	}
	if err := c.file.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return os.ErrClosed
	}
	if _, err := c.file.Write(requests); err != nil {
		return err
	}
	var failed error
	err := c.receive(c.buf, func(b []byte, err error) bool {
		if err != nil {
			if !errors.Is(err, unix.EAGAIN) {
				failed = err
			}
			return errors.Is(err, unix.EAGAIN)
		}
		for msg := range messages(b) {
			if msg.typ == unix.NLMSG_OVERRUN {
				failed = unix.EMSGSIZE
				return false
			}
			if int32(msg.seq-first) < 0 {
				continue
			}
			if !f(msg) {
				return false
			}
		}
		return true
	})
	return errors.Join(err, failed)
}

// dump calls f with each message that answers a dump request. On
// errInterrupted f has been called with an inconsistent answer.
func (c *conn) dump(typ uint16, body []byte, f func(data []byte)) error {
	req, seq := c.appendMessage(nil, typ, unix.NLM_F_DUMP, body)
	var failed error
	err := c.exchange(req, seq, func(msg message) bool {
		if msg.flags&unix.NLM_F_DUMP_INTR != 0 {
			failed = errInterrupted
		}
		switch msg.typ {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if e := errno(msg); e != nil {
				failed = e
			}
			return false
		}
		f(msg.data)
		return true
	})
	return errors.Join(err, failed)
}

// errno reads the error of an acknowledgement or the end of a dump.
func errno(msg message) error {
	if len(msg.data) < 4 {
		return nil
	}
	if e := int32(native.Uint32(msg.data)); e != 0 {
		return unix.Errno(-e)
	}
	return nil
}
