package guestbpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// DefaultPins is where what is attached is pinned, each device's by its index.
const DefaultPins = "/sys/fs/bpf/tapswitch-guest"

// The pins of a device.
const (
	pinLink     = "link"
	pinPrograms = guestMapPrograms
	pinCounts   = guestMapCounts
)

// unfinished begins the names of directories that get their pins.
const unfinished = "new-"

// lock makes the directory of pins if it is not there, and keeps others from changing
// it until unlock. What a process that died has left unfinished is removed.
func lock(dir string) (unlock func(), err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making the directory of pins: %w: %s", err, mountHint(dir))
	}
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", dir, err)
	}
	if uint32(stat.Type) != bpfFS {
		// It can't hold pins, so it is not of use to anybody.
		return nil, errors.Join(fmt.Errorf("%s is not in a BPF file system: %s", dir, mountHint(dir)), os.Remove(dir))
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("locking the pins: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	entries, err := f.ReadDir(0)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unfinished) {
			err = errors.Join(err, removePins(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("removing unfinished pins: %w", err)
	}
	return func() { f.Close() }, nil
}

const bpfFS = 0xcafe4a11

func mountHint(dir string) string {
	return fmt.Sprintf("mount one by 'mount -t bpf bpf %s', as root", filepath.Dir(dir))
}

// removePins removes a device's directory with what can be in it.
func removePins(dir string) error {
	for _, name := range []string{pinLink, pinPrograms, pinCounts, pinPromiscuous} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing a pin: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("removing the pins' directory: %w", err)
	}
	return nil
}

// pinned gives the indexes of devices that have pins.
func pinned(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing pins: %w", err)
	}
	var found []int
	for _, e := range entries {
		if ifindex, err := strconv.Atoi(e.Name()); err == nil {
			found = append(found, ifindex)
		}
	}
	return found, nil
}
