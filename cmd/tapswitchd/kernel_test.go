package main

import (
	"bytes"
	"errors"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// tcHook is how the daemon names its tc hook on this kernel.
var tcHook = sync.OnceValue(func() string {
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
		return "clsact"
	}
	return "tcx"
})

// bothHooks is how the daemon names those of a port with XDP.
func bothHooks() string { return "xdp native + " + tcHook() }

// emulated says whether QEMU emulates the CPU, where times say nothing.
func emulated() bool {
	text, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && bytes.Contains(text, []byte("QEMU TCG"))
}

// transferSize gives how many bytes stand for so many on an emulated CPU.
func transferSize(n int64) int64 {
	if emulated() {
		n /= 10
	}
	return n
}

// countsLosses says whether this kernel tells the daemon of frames that are lost
// after their verdict.
func countsLosses() bool {
	v, err := features.LinuxVersionCode()
	return err != nil || v >= 5<<16|13<<8
}
