package guestbpf

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool asks a device's driver. What points to the request, which gets the answer.
func ethtool(dev string, what unsafe.Pointer) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer syscall.Close(fd)
	ask := struct {
		name [syscall.IFNAMSIZ]byte
		data unsafe.Pointer
		rest [16]byte
	}{data: what}
	copy(ask.name[:syscall.IFNAMSIZ-1], dev)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ask))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}

const (
	ethtoolGetFlags = 0x25   // ETHTOOL_GFLAGS
	flagRxVLAN      = 1 << 8 // ETH_FLAG_RXVLAN
)

// checkTags refuses a device that takes VLAN tags out of frames before XDP: what comes by
// a VLAN would be routed as if it did not.
func (d *device) checkTags() error {
	value := struct{ command, flags uint32 }{command: ethtoolGetFlags}
	err := ethtool(d.name, unsafe.Pointer(&value))
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking %s for its offloads: %w", d.name, err)
	}
	if value.flags&flagRxVLAN != 0 {
		return fmt.Errorf("%[1]s takes VLAN tags out of frames, which this program must see: switch that off by 'ethtool -K %[1]s rxvlan off'", d.name)
	}
	return nil
}
