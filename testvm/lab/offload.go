package lab

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offload is something that a device does in the stack's place, as ethtool -K
// switches it.
type Offload uint32

// The offloads, numbered as ethtool's commands that set them.
const (
	TxChecksum Offload = unix.ETHTOOL_STXCSUM
	TSO        Offload = unix.ETHTOOL_STSO
	GSO        Offload = unix.ETHTOOL_SGSO
	GRO        Offload = unix.ETHTOOL_SGRO
)

func (o Offload) String() string {
	switch o {
	case TxChecksum:
		return "tx checksum"
	case TSO:
		return "tso"
	case GSO:
		return "gso"
	case GRO:
		return "gro"
	}
	return fmt.Sprintf("offload %#x", uint32(o))
}

// SetOffload switches an offload of a device on or off. TSO needs TxChecksum;
// the kernel takes it away without it.
func (n *Node) SetOffload(dev string, o Offload, on bool) error {
	request := struct{ cmd, data uint32 }{cmd: uint32(o)}
	if on {
		request.data = 1
	}
	err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		var ifreq struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte // the rest of struct ifreq, at least
		}
		copy(ifreq.name[:unix.IFNAMSIZ-1], dev)
		var pinner runtime.Pinner
		defer pinner.Unpin()
		pinner.Pin(&request)
		ifreq.data = unsafe.Pointer(&request)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq)))
		if errno != 0 {
			return os.NewSyscallError("SIOCETHTOOL", errno)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("switching %v of %s in %s: %w", o, dev, n.name, err)
	}
	return nil
}
