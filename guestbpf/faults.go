package guestbpf

import (
	"fmt"
	"os"
	"strings"
)

// A release is a kernel's version: 6.12.90 is {6, 12, 90}.
type release [3]int

func (r release) before(o release) bool {
	for i := range r {
		if r[i] != o[i] {
			return r[i] < o[i]
		}
	}
	return false
}

func kernelRelease() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "", fmt.Errorf("reading the kernel's version: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// parseRelease reads a version; ok is false for what is none.
func parseRelease(text string) (r release, ok bool) {
	n, err := fmt.Sscanf(text, "%d.%d.%d", &r[0], &r[1], &r[2])
	return r, n >= 2 || err == nil
}

// A fault of the kernel, known by versions. Distributions fix faults without changing the
// version that they began with, so it may be fixed all the same.
type fault struct {
	text, fix string
	concerns  func(Facts) bool
	fixed     release
	// backports are the first versions of older series that have the fix.
	backports []release
}

func (f fault) affects(r release) bool {
	for _, b := range f.backports {
		if r[0] == b[0] && r[1] == b[1] {
			return r.before(b)
		}
	}
	return r.before(f.fixed)
}

var faults = []fault{
	{
		text: "virtio_net writes behind a page if XDP meets a frame of more than 3,840 bytes that came in several buffers (xdp_linearize_page)",
		fix:  "update the kernel, or keep the MTU at 3,800 or below",
		// It takes a frame that is longer than what the MTU allows, so all with such an MTU.
		concerns:  func(f Facts) bool { return f.Virtio.Mergeable && f.MTU > 3800 },
		fixed:     release{6, 3, 0},
		backports: []release{{5, 10, 178}, {5, 15, 108}, {6, 1, 25}, {6, 2, 12}},
	},
	{
		text:     "l3fwd --fib goes on to use the address of a neighbour that no longer answers (bpf_fib_lookup)",
		fix:      "update the kernel, or use l3fwd --routes",
		concerns: func(Facts) bool { return true },
		fixed:    release{6, 6, 0},
	},
}
