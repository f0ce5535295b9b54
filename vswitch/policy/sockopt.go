package policy

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// getsockopt asks a table's kernel part: what is asked for is in buf, and so is
// the answer. A nil buf asks with an address that can't be read.
func getsockopt(fd, level, name int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// text gives a string that ends at its first zero byte.
func text(b []byte) string {
	return unix.ByteSliceToString(b)
}

// ebtFill asks for the entries of a table of ebtables, of which replace has the
// name, the number and the size. Its pointer to them is why this is here.
func ebtFill(fd int, replace, entries []byte) error {
	if len(entries) == 0 {
		return nil
	}
	// The kernel wants the length of both together, and writes to the pointer.
	both := make([]byte, len(replace)+len(entries))
	copy(both, replace)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&both[0])
	native.PutUint32(both[ebtNumCounters:], 0)
	native.PutUint64(both[ebtBuffer:], uint64(uintptr(unsafe.Pointer(&both[len(replace)]))))
	err := getsockopt(fd, unix.SOL_IP, ebtGetEntries, both)
	copy(entries, both[len(replace):])
	return err
}
