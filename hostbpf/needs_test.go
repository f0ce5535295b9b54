package hostbpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// needTCX leaves a test out on kernels before Linux 6.6, where a test of clsact
// stands in.
func needTCX(t *testing.T) {
	t.Helper()
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
		t.Skip("tcx needs Linux 6.6")
	}
}

// needXDPContext leaves a test out on kernels before Linux 5.15, where
// BPF_PROG_RUN can't say by which device a frame came to XDP.
func needXDPContext(t *testing.T) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	frame := make([]byte, 64)
	_, err = p.Run(&ebpf.RunOptions{Data: frame, Context: xdpContext{DataEnd: uint32(len(frame))}})
	if errors.Is(err, unix.EINVAL) {
		t.Skip("BPF_PROG_RUN takes an XDP context from Linux 5.15 on")
	}
}
