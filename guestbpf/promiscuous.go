package guestbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A wire carries frames for anybody, but a NIC, of which QEMU's is one, drops those
// for others before any program, unless the device is promiscuous.

// pinPromiscuous, a directory, says that the device is so for our sake.
const pinPromiscuous = "promiscuous"

// hearAll makes a device promiscuous until detach; one that is so already stays so.
func (h *hook) hearAll(d *device) error {
	if d.flags&syscall.IFF_PROMISC != 0 {
		return nil
	}
	if err := os.Mkdir(filepath.Join(h.dir, pinPromiscuous), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("noting that %s becomes promiscuous: %w", d.name, err)
	}
	if err := setPromiscuous(d.ifindex, true); err != nil {
		return fmt.Errorf("making %s promiscuous: %w", d.name, err)
	}
	return nil
}

// hearOwn takes back what hearAll did.
func (h *hook) hearOwn() error {
	if _, err := os.Stat(filepath.Join(h.dir, pinPromiscuous)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := setPromiscuous(h.ifindex, false); err != nil && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("making %s not promiscuous: %w", deviceName(h.ifindex), err)
	}
	return os.Remove(filepath.Join(h.dir, pinPromiscuous))
}

func setPromiscuous(ifindex int, on bool) error {
	m := ifinfo(ifindex)
	if on {
		binary.NativeEndian.PutUint32(m[8:], syscall.IFF_PROMISC)
	}
	binary.NativeEndian.PutUint32(m[12:], syscall.IFF_PROMISC) // the flags that change
	_, err := request(syscall.RTM_NEWLINK, syscall.NLM_F_ACK, m)
	return err
}
