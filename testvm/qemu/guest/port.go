package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// openPort opens the virtio-serial port to the host, once the driver has found it.
func openPort() (*os.File, error) {
	events, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("listening for devices: %w", err)
	}
	defer unix.Close(events)
	if err := unix.Bind(events, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return nil, fmt.Errorf("listening for devices: %w", err)
	}
	b := make([]byte, 16<<10)
	for {
		if dev := findPort(); dev != "" {
			// Not by os.OpenFile, which would not block: reading returns at once until
			// the driver knows that the host is there, and writing waits for that.
			fd, err := unix.Open(dev, unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("opening the port to the host: %w", err)
			}
			return os.NewFile(uintptr(fd), dev), nil
		}
		// ENOBUFS means that something was lost: look again.
		if _, err := unix.Read(events, b); err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
			return nil, fmt.Errorf("waiting for the port to the host: %w", err)
		}
	}
}

func findPort() string {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, n := range names {
		if name, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(name)) == PortName {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(n)))
		}
	}
	return ""
}
