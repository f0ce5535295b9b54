package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

// VnetHdrLen is the length in bytes of the virtio-net header in front of each
// frame of a tap with TapOptions.VnetHdr: struct virtio_net_hdr_mrg_rxbuf, as
// QEMU uses it. All zero, it says that the frame is complete.
const VnetHdrLen = 12

// MaxFrameLen is the room in bytes that the longest frame of a tap needs, a TSO
// frame with its Ethernet header and VLAN tags, without the virtio-net header.
const MaxFrameLen = 64<<10 + 64

// TapOptions says how a tap is opened. The zero value is a tap of one queue
// without virtio-net header, whose frames are complete, and which goes away when
// it is closed.
type TapOptions struct {
	// VnetHdr puts VnetHdrLen bytes in front of each frame, both ways.
	VnetHdr bool
	// Offloads takes frames without checksum and TCP segments of up to 64 KiB from
	// the kernel, which says so in the header. It needs VnetHdr.
	Offloads bool
	// MultiQueue lets the tap have several queues: open it once for each.
	MultiQueue bool
	// Persist leaves the device, without a carrier, when the tap is closed.
	Persist bool
}

// Tap is an open queue of a tap device. One goroutine may read while another
// writes.
type Tap struct {
	name string
	file io.ReadWriteCloser
}

// OpenTap opens a tap device in the node, and makes it if there is none of this
// name. A new device is down and nobody's port.
func OpenTap(n *Node, name string, opts TapOptions) (*Tap, error) {
	if opts.Offloads && !opts.VnetHdr {
		return nil, fmt.Errorf("opening tap %s in %s: offloads need the virtio-net header", name, n.name)
	}
	t := &Tap{name: name}
	err := n.Do(func() (err error) {
		if opts.VnetHdr {
			t.file, err = openVnetTap(name, opts)
		} else {
			t.file, err = openPlainTap(name, opts)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening tap %s in %s: %w", name, n.name, err)
	}
	return t, nil
}

func openPlainTap(name string, opts TapOptions) (io.ReadWriteCloser, error) {
	// water opens without O_CLOEXEC: nothing may be forked before it is set.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	tap, err := water.New(water.Config{
		DeviceType: water.TAP,
		PlatformSpecificParams: water.PlatformSpecificParams{
			Name:       name,
			Persist:    opts.Persist,
			MultiQueue: opts.MultiQueue,
		},
	})
	if err != nil {
		return nil, err
	}
	raw, err := tap.ReadWriteCloser.(*os.File).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { unix.CloseOnExec(int(fd)) })
	}
	if err != nil {
		tap.Close()
		return nil, err
	}
	return tap.ReadWriteCloser, nil
}

func openVnetTap(name string, opts TapOptions) (io.ReadWriteCloser, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/net/tun: %w", err)
	}
	if err := setVnetTap(fd, name, opts); err != nil {
		unix.Close(fd)
		return nil, err
	}
	// Only now: the poller gets an error from a file that is not yet a tap.
	return os.NewFile(uintptr(fd), name), nil
}

func setVnetTap(fd int, name string, opts TapOptions) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if opts.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return os.NewSyscallError("TUNSETIFF", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, VnetHdrLen); err != nil {
		return os.NewSyscallError("TUNSETVNETHDRSZ", err)
	}
	offloads := 0
	if opts.Offloads {
		offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
		return os.NewSyscallError("TUNSETOFFLOAD", err)
	}
	persist := 0
	if opts.Persist {
		persist = 1
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, persist); err != nil {
		return os.NewSyscallError("TUNSETPERSIST", err)
	}
	return nil
}

// Name gives the device's name.
func (t *Tap) Name() string { return t.name }

// Read reads one frame that the kernel sent out of the device, with its
// virtio-net header if the tap has one. What doesn't fit into b is lost. After
// Close, the error is os.ErrClosed.
func (t *Tap) Read(b []byte) (int, error) { return t.file.Read(b) }

// Write hands the kernel one frame as received by the device, with its
// virtio-net header if the tap has one. The error is EIO while the device is
// down.
func (t *Tap) Write(b []byte) (int, error) { return t.file.Write(b) }

// SyscallConn gives the file descriptor for use beside Read and Write. It is
// non-blocking.
func (t *Tap) SyscallConn() (syscall.RawConn, error) {
	c, ok := t.file.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn()
}

// SetReadDeadline makes Read fail with os.ErrDeadlineExceeded from then on. The
// zero time takes the deadline back.
func (t *Tap) SetReadDeadline(at time.Time) error {
	f, ok := t.file.(*os.File)
	if !ok {
		return errors.ErrUnsupported
	}
	return f.SetReadDeadline(at)
}

// Close closes the queue. With its last queue a device goes away, unless it is
// persistent.
func (t *Tap) Close() error { return t.file.Close() }
