package matrix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// An end is where frames go into a port, and come out of it: a guest's tap, or a
// packet socket on the outside's device.
type end struct {
	file   *os.File
	header int // bytes in front of a frame
}

// The offloads of taps (TUNSETOFFLOAD). Those for tunnels are newer than package
// unix: Linux 6.17.
const (
	tunUDPTunnelGSO = 0x080
	allOffloads     = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_USO4 | unix.TUN_F_USO6
)

// openTap opens a tap with all the offloads that the kernel has, or none. lab's
// taps have those that QEMU asks for by default.
func openTap(n *lab.Node, name string, offloads bool) (e *end, tunnels bool, err error) {
	fd := -1
	err = n.Do(func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		return errors.Join(
			os.NewSyscallError("TUNSETIFF", unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)),
			os.NewSyscallError("TUNSETVNETHDRSZ", unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, hdrLen)))
	})
	if err == nil && offloads {
		tunnels = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, allOffloads|tunUDPTunnelGSO) == nil
		if !tunnels {
			err = os.NewSyscallError("TUNSETOFFLOAD", unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, allOffloads))
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("opening tap %s: %w", name, err)
	}
	return &end{file: os.NewFile(uintptr(fd), name), header: hdrLen}, tunnels, nil
}

// openSocket opens a packet socket with virtio-net headers on a device.
func openSocket(n *lab.Node, dev string) (*end, error) {
	index, err := n.Ifindex(dev)
	if err != nil {
		return nil, err
	}
	fd := -1
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index, Protocol: all}))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("opening a packet socket on %s: %w", dev, err)
	}
	return &end{file: os.NewFile(uintptr(fd), dev), header: 10}, nil
}

func (e *end) send(f frame) error {
	_, err := e.file.Write(append(append([]byte(nil), f.header[:e.header]...), f.data...))
	return err
}

// drain gives the frames that have come.
func (e *end) drain(t *testing.T) (frames []frame) {
	t.Helper()
	raw, err := e.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, hdrLen+lab.MaxFrameLen)
	if controlErr := raw.Control(func(fd uintptr) {
		for err == nil {
			var n int
			if n, err = unix.Read(int(fd), b); err == nil {
				frames = append(frames, e.frame(b[:n]))
			}
		}
	}); controlErr != nil {
		t.Fatal(controlErr)
	}
	// A tap that is down has nothing either.
	if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EBADFD) {
		t.Fatal(err)
	}
	return frames
}

func (e *end) frame(b []byte) frame {
	f := frame{data: append([]byte(nil), b[e.header:]...)}
	copy(f.header[:], b[:e.header])
	return f
}

// receive gives the frames that come until the end is closed.
func (e *end) receive() <-chan frame {
	frames := make(chan frame, 1024)
	go func() {
		defer close(frames)
		b := make([]byte, hdrLen+lab.MaxFrameLen)
		for {
			n, err := e.file.Read(b)
			if errors.Is(err, unix.ENETDOWN) {
				continue
			}
			if err != nil {
				return
			}
			frames <- e.frame(b[:n])
		}
	}()
	return frames
}
