package guestbpf

import (
	"errors"
	"fmt"
	"os"
	"strings"
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

// Commands of ethtool, and flags of devices.
const (
	ethtoolGetDriver   = 0x03    // ETHTOOL_GDRVINFO
	ethtoolGetRings    = 0x10    // ETHTOOL_GRINGPARAM
	ethtoolGetFlags    = 0x25    // ETHTOOL_GFLAGS
	ethtoolGetChannels = 0x3c    // ETHTOOL_GCHANNELS
	flagRxVLAN         = 1 << 8  // ETH_FLAG_RXVLAN
	flagLRO            = 1 << 15 // ETH_FLAG_LRO
)

// offloadFlags gives the flags of a device that ethtool knows; 0 if its driver has none.
func offloadFlags(dev string) (uint32, error) {
	value := struct{ command, flags uint32 }{command: ethtoolGetFlags}
	err := ethtool(dev, unsafe.Pointer(&value))
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("asking %s for its offloads: %w", dev, err)
	}
	return value.flags, nil
}

// driverName gives the name of a device's driver; none if it has none.
func driverName(dev string) (string, error) {
	info := struct {
		command      uint32
		driver       [32]byte
		rest         [32 * 4]byte
		more, counts [16]byte
	}{command: ethtoolGetDriver}
	err := ethtool(dev, unsafe.Pointer(&info))
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("asking %s for its driver: %w", dev, err)
	}
	name, _, _ := strings.Cut(string(info.driver[:]), "\x00")
	return name, nil
}

// rings gives the number of buffers of a queue, and the most that there may be; 0 if the
// driver does not tell.
func rings(dev string) (rx, rxMax, tx, txMax uint32) {
	r := struct{ command, rxMax, miniMax, jumboMax, txMax, rx, mini, jumbo, tx uint32 }{command: ethtoolGetRings}
	if ethtool(dev, unsafe.Pointer(&r)) != nil {
		return 0, 0, 0, 0
	}
	return r.rx, r.rxMax, r.tx, r.txMax
}

// channels gives the number of queue pairs in use, and the most that there may be; 0 if
// the driver does not tell.
func channels(dev string) (used, most uint32) {
	c := struct{ command, rxMax, txMax, otherMax, most, rx, tx, other, used uint32 }{command: ethtoolGetChannels}
	if ethtool(dev, unsafe.Pointer(&c)) != nil {
		return 0, 0
	}
	return c.used, c.most
}

// checkTags refuses a device that takes VLAN tags out of frames before XDP: what comes by
// a VLAN would be routed as if it did not.
func (d *device) checkTags() error {
	flags, err := offloadFlags(d.name)
	if err != nil {
		return err
	}
	if flags&flagRxVLAN != 0 {
		return fmt.Errorf("%[1]s takes VLAN tags out of frames, which this program must see: switch that off by 'ethtool -K %[1]s rxvlan off'", d.name)
	}
	return nil
}
