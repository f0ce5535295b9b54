package tapsink

import (
	"errors"
	"fmt"
	"os"

	"github.com/songgao/water"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Tap is one of the sink's devices. It goes away when the sink is closed.
type Tap struct {
	Name    string
	Ifindex int
}

// openTap makes a tap, sets it up, and gives its descriptor.
func openTap(name string, queueLen int) (t Tap, fd int, err error) {
	params := water.PlatformSpecificParams{Name: name}
	dev, err := water.New(water.Config{DeviceType: water.TAP, PlatformSpecificParams: params})
	if err != nil {
		return Tap{}, 0, fmt.Errorf("making tap %q: %w", name, err)
	}
	fd, err = takeDescriptor(dev)
	if err != nil {
		return Tap{}, 0, fmt.Errorf("taking the descriptor of tap %s: %w", dev.Name(), err)
	}
	link, err := netlink.LinkByName(dev.Name())
	if err == nil && queueLen > 0 {
		err = netlink.LinkSetTxQLen(link, queueLen)
	}
	if err == nil {
		err = silence(dev.Name())
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		unix.Close(fd)
		return Tap{}, 0, fmt.Errorf("setting up tap %s: %w", dev.Name(), err)
	}
	return Tap{Name: dev.Name(), Ifindex: link.Attrs().Index}, fd, nil
}

// silence keeps the host from announcing itself by IPv6 on the tap, as frames that
// nobody sent would be counted.
func silence(name string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return nil
	}
	return err
}

// takeDescriptor takes the tap away from the Go runtime, which has it in its
// poller: every frame would then wake the poller up, at the sender's expense.
// Closing the file takes it out of the poller; the duplicate keeps the device.
func takeDescriptor(dev *water.Interface) (fd int, err error) {
	file, ok := dev.ReadWriteCloser.(*os.File)
	if !ok {
		return 0, fmt.Errorf("it is a %T, not a file", dev.ReadWriteCloser)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var dupErr error
	err = raw.Control(func(old uintptr) {
		fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err := errors.Join(err, dupErr); err != nil {
		return 0, errors.Join(err, file.Close())
	}
	if err := file.Close(); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}
