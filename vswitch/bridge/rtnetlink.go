package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
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

var errCutShort = errors.New("an answer of the kernel is cut short")

// A conn is an rtnetlink socket of the network namespace in which it was made,
// whichever thread uses it later. The kernel lets nobody send to it who could
// not change the bridges as well, so senders need no check.
type conn struct{ *netlink.Conn }

func dial() (*conn, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{MessageBufferSize: maxDatagram})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return &conn{c}, nil
}

// Close gives os.ErrClosed the second time.
func (c *conn) Close() error {
	if err := c.closed(nil); err != nil {
		return err
	}
	return c.Conn.Close()
}

// closed gives os.ErrClosed in place of any error of a socket that is closed,
// for which the library has several others.
func (c *conn) closed(err error) error {
	if _, gone := c.SyscallConn(); gone != nil {
		return os.ErrClosed
	}
	return err
}

// read reads a datagram into buf. If there is none, it waits, or gives EAGAIN.
//
// The library has no read that does not wait: with a deadline that has passed it
// does not look at the socket. It also starts a goroutine for each read, which
// would make reading events take three times as long.
func (c *conn) read(buf []byte, wait bool) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, os.ErrClosed
	}
	if err := raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), buf)
		return !wait || !errors.Is(err, unix.EAGAIN)
	}); err != nil {
		return 0, c.closed(err)
	}
	return n, err
}

// request makes a message of a fixed part, of the type that goes with typ, and
// attributes.
func request(typ netlink.HeaderType, fixed any, attributes *netlink.AttributeEncoder) (netlink.Message, error) {
	data, err := binary.Append(nil, native, fixed)
	if err != nil {
		return netlink.Message{}, err
	}
	more, err := attributes.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request},
		Data:   append(data, more...),
	}, err
}

// decode reads the fixed part of a message and gives its attributes.
func decode(data []byte, fixed any) (*netlink.AttributeDecoder, error) {
	n, err := binary.Decode(data, native, fixed)
	if err != nil {
		return nil, err
	}
	return netlink.NewAttributeDecoder(data[n:])
}

// send sends requests and gives the sequence number of the first. What is left
// of the answers to earlier ones is thrown away.
func (c *conn) send(requests []netlink.Message) (first uint32, err error) {
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return 0, c.closed(err)
	}
	for scrap := make([]byte, 1); ; {
		_, err := c.read(scrap, false)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return 0, err
		}
	}
	if _, err := c.SendMessages(requests); err != nil {
		return 0, c.closed(err)
	}
	return requests[0].Header.Sequence, nil
}

// dump calls f with each message that answers a dump request, datagram by
// datagram, so that the whole answer is never in memory. On errInterrupted f
// has been called with an inconsistent answer. When f gives false, the kernel
// still has the rest ready, and the connection is good for nothing but Close.
//
// The library's own iterator reads an answer to its end, wanted or not.
func (c *conn) dump(req netlink.Message, f func(data []byte) bool) error {
	req.Header.Flags |= netlink.Dump
	if _, err := c.send([]netlink.Message{req}); err != nil {
		return err
	}
	var interrupted error
	for buf := make([]byte, maxDatagram); ; {
		n, err := c.read(buf, true)
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) > 0; {
			msg, rest, ok := nextMessage(b)
			if !ok {
				return errCutShort
			}
			b = rest
			if msg.flags&unix.NLM_F_DUMP_INTR != 0 {
				interrupted = errInterrupted
			}
			switch msg.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if err := msg.err(); err != nil {
					return err
				}
				return interrupted
			}
			if !f(msg.data) {
				return interrupted
			}
		}
	}
}

// ask sends requests for one thing each, and calls f with those that are there.
func (c *conn) ask(requests []netlink.Message, f func(data []byte)) error {
	if _, err := c.send(requests); err != nil {
		return err
	}
	buf := make([]byte, maxDatagram)
	for answers := 0; answers < len(requests); {
		n, err := c.read(buf, true)
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) > 0; answers++ {
			msg, rest, ok := nextMessage(b)
			if !ok {
				return errCutShort
			}
			b = rest
			if msg.typ != unix.NLMSG_ERROR {
				f(msg.data)
				continue
			}
			switch err := msg.err(); {
			case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV):
				// Gone, or its bridge is.
			default:
				return err
			}
		}
	}
	return nil
}

// change sends requests and calls refused with the index of each that the
// kernel refuses. It acknowledges only errors and the last one.
func (c *conn) change(requests []netlink.Message, refused func(i int, err error)) error {
	last := len(requests) - 1
	requests[last].Header.Flags |= netlink.Acknowledge
	first, err := c.send(requests)
	if err != nil {
		return err
	}
	for i := -1; i < last; {
		for msg, err := range c.ReceiveIter() {
			var refusal *netlink.OpError
			switch {
			case err == nil:
				i = int(msg.Header.Sequence - first)
			case errors.As(err, &refusal) && refusal.Sequence != 0:
				i = int(refusal.Sequence - first)
				refused(i, refusal.Err)
			default:
				return c.closed(err)
			}
		}
	}
	return nil
}

// clock reads a time in units of USER_HZ, which is 100 per second on every
// architecture that Go runs on.
func clock(n uint32) time.Duration { return time.Duration(n) * (time.Second / 100) }
