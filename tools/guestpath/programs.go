package guestpath

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const (
	xdpDrop = 1
	xdpPass = 2
	tcShot  = 2
)

// programs are those that are compared with, and the one that begins all ways.
type programs struct {
	begin   *ebpf.Program
	next    *ebpf.Map // what begin calls
	pass    *ebpf.Program
	drop    *ebpf.Program
	tcDrop  *ebpf.Program
	counter *ebpf.Program // of flushes
	flushed *ebpf.Map     // frames, then flushes
}

func constant(kind ebpf.ProgramType, value int32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, value), asm.Return()},
	})
}

func loadPrograms(frame []byte) (p *programs, err error) {
	p = &programs{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	p.next, err = ebpf.NewMap(&ebpf.MapSpec{Name: "next", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("making the map of the next program: %w", err)
	}
	p.flushed, err = ebpf.NewMap(&ebpf.MapSpec{Name: "flushed", Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("making the counters of flushes: %w", err)
	}
	var errs [5]error
	p.begin, errs[0] = loadBegin(frame, p.next)
	p.pass, errs[1] = constant(ebpf.XDP, xdpPass)
	p.drop, errs[2] = constant(ebpf.XDP, xdpDrop)
	p.tcDrop, errs[3] = constant(ebpf.SchedCLS, tcShot)
	p.counter, errs[4] = loadCounter(p.flushed)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("loading the programs to compare with: %w", err)
	}
	return p, nil
}

func (p *programs) close() {
	for _, program := range []*ebpf.Program{p.begin, p.pass, p.drop, p.tcDrop, p.counter} {
		program.Close()
	}
	p.next.Close()
	p.flushed.Close()
}

// loadBegin loads what all ways begin with: it puts back what routing writes into a
// frame, since the generator uses its pages again, and calls the way's own program.
func loadBegin(frame []byte, next *ebpf.Map) (*ebpf.Program, error) {
	const headers = 34
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, headers),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
	}
	// Both addresses; TTL; checksum.
	for _, at := range []int16{0, 4, 8, 20, 24} {
		ins = append(ins, asm.StoreImm(asm.R2, at, int64(int32(binary.NativeEndian.Uint32(frame[at:]))), asm.Word))
	}
	ins = append(ins,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, next.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("out"),
		asm.Return(),
	)
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "begin", Type: ebpf.XDP, License: "GPL", Instructions: ins})
}

// loadCounter loads what counts the frames that devmaps hand to devices, and how often.
func loadCounter(flushed *ebpf.Map) (*ebpf.Program, error) {
	add := asm.StoreXAdd(asm.R2, asm.R3, asm.DWord)
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "flushes", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "xdp_devmap_xmit", License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R3, asm.R1, 16, asm.DWord), // sent
			asm.LoadMapValue(asm.R2, flushed.FD(), 0),
			add,
			asm.Mov.Imm(asm.R3, 1),
			asm.LoadMapValue(asm.R2, flushed.FD(), 8),
			add,
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		},
	})
}
