package hostbpf

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A mapped array is a BPF array map in this process's memory. The datapath
// reads it while it is written, so fields that programs look at are stored by
// sync/atomic.
type mapped[T any] struct {
	entries []T
	memory  []byte
}

// mapArray maps an array map whose values have the layout of T.
func mapArray[T any](m *ebpf.Map) (mapped[T], error) {
	var zero T
	if size := uint32(unsafe.Sizeof(zero)); m.ValueSize() != size {
		return mapped[T]{}, fmt.Errorf("mapping %v: its values have %d bytes, want %d", m, m.ValueSize(), size)
	}
	page := unix.Getpagesize()
	length := (int(m.ValueSize())*int(m.MaxEntries()) + page - 1) / page * page
	memory, err := unix.Mmap(m.FD(), 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return mapped[T]{}, fmt.Errorf("mapping %v: %w", m, err)
	}
	return mapped[T]{
		entries: unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(memory))), m.MaxEntries()),
		memory:  memory,
	}, nil
}

func (m *mapped[T]) close() {
	if m.memory != nil {
		unix.Munmap(m.memory)
		*m = mapped[T]{}
	}
}
