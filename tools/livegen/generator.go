package livegen

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/tapswitch/tapswitch/tools/pinned"
	"golang.org/x/sys/unix"
)

const (
	// MinBurst is the least that one call should send, in frames: each call
	// builds a page pool, and over fewer frames its price shows.
	MinBurst = 4096
	// defaultBatch is how many frames the kernel runs before it flushes and
	// looks for signals. Of those it takes (at most 256) 64 was the cheapest
	// per frame, and it is the kernel's own default and a NAPI poll's budget.
	defaultBatch = 64
)

// Traffic says what to send.
type Traffic struct {
	// Program meets every frame. It need not be attached anywhere.
	Program *ebpf.Program
	// Ingress is the ifindex of the device that the frames seem to come from.
	// It must be up for frames that the program passes to go anywhere.
	Ingress int
	// Frame is sent again and again, from the destination address on, without
	// FCS. The kernel reuses pages, so a frame may come with what the program
	// wrote into an earlier one.
	Frame []byte
	// Dry leaves out what the program wants done with the frames: they go nowhere, and
	// the program alone is measured.
	Dry bool
	// Batch is how many frames are run between two flushes; zero means 64.
	Batch int
}

// A Burst is what one call sent.
type Burst struct {
	// Frames that met the program: exact if Interrupted is 0, and fewer than
	// really did otherwise.
	Frames uint64
	// CPU is what the sending thread spent, in the kernel or on its way there.
	CPU time.Duration
	// Interrupted counts how often the kernel broke off and began again. The
	// signals that could do so are kept away, so that this takes SIGSTOP, a
	// debugger or a frozen cgroup; measure again then.
	Interrupted int
}

// A Generator sends from one thread on one CPU.
type Generator struct{ _ [0]func() }

// OnCPU calls send on a thread of its own that is pinned to a CPU, and returns
// when it does. The generator is for send alone, on the goroutine that it is
// called on.
func OnCPU(cpu int, send func(*Generator) error) error {
	done, err := pinned.Go(cpu, func() error { return send(&Generator{}) })
	if err != nil {
		return err
	}
	return <-done
}

// Send runs the program on n frames and returns when all are on their way:
// dropped, in a device's queue, or through the host's stack. A frame that a
// full queue refuses is among them, so count them where they arrive. An error
// leaves it unknown how many were sent. It needs CAP_NET_ADMIN and CAP_BPF, and
// Linux 5.18.
func (g *Generator) Send(t Traffic, n int) (Burst, error) {
	batch := t.Batch
	if batch == 0 {
		batch = defaultBatch
	}
	var burst Burst
	opts := ebpf.RunOptions{
		Data:      t.Frame,
		Context:   context{DataEnd: uint32(len(t.Frame)), IngressIfindex: uint32(t.Ingress)},
		Repeat:    uint32(n),
		Flags:     unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		BatchSize: uint32(batch),
		Reset:     func() { burst.Interrupted++ }, //nolint:staticcheck // the only witness that the library began again after EINTR
	}
	if t.Dry {
		opts.Flags, opts.BatchSize = 0, 0
	}
	unmask, err := maskSignals()
	if err != nil {
		return Burst{}, err
	}
	defer unmask()
	before, err := threadCPU()
	if err != nil {
		return Burst{}, err
	}
	_, err = t.Program.Run(&opts)
	if errors.Is(err, unix.EINVAL) {
		return Burst{}, fmt.Errorf("running %s on %d live frames from device %d, which must exist (needs Linux 5.18): %w", t.Program, n, t.Ingress, err)
	}
	if err != nil {
		return Burst{}, fmt.Errorf("running %s on %d live frames: %w", t.Program, n, err)
	}
	after, err := threadCPU()
	if err != nil {
		return Burst{}, err
	}
	burst.Frames, burst.CPU = uint64(n), after-before
	return burst, nil
}

// context is the kernel's struct xdp_md.
type context struct {
	Data, DataEnd, DataMeta                     uint32
	IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// maskSignals keeps all signals from the calling thread until unmask. The Go
// runtime preempts by signals, each of which would break a run off with EINTR,
// and the kernel doesn't say after how many frames. The runtime does not miss
// them, as a thread in a system call need not be preempted, and signals to the
// process go to its other threads.
func maskSignals() (unmask func(), err error) {
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return nil, fmt.Errorf("masking signals: %w", err)
	}
	// It can't fail: it is given what it gave.
	return func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }, nil
}

// threadCPU gives the CPU time that the calling thread has used.
func threadCPU() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, fmt.Errorf("reading the thread's CPU time: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
