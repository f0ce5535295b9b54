package hostbpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// expectOneBuffer makes the XDP programs fit a kernel before Linux 5.18, which has
// no frames in several buffers: a driver that would need them at its MTU refuses
// the program.
func expectOneBuffer(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		p.Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		for i, ins := range p.Instructions {
			if ins.IsBuiltinCall() && ins.Constant == int64(asm.FnXdpGetBuffLen) {
				// No frame is longer than its first buffer.
				p.Instructions[i] = asm.Mov.Imm(asm.R0, 0).WithMetadata(ins.Metadata)
			}
		}
	}
}
