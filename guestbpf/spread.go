package guestbpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// spread is the program that hands frames to CPUs. The mode is that of the program which
// they meet there.
const spread Mode = guestProgSpread

// spreadQueue is how many frames wait for a CPU at most; it drops what is beyond.
const spreadQueue = 2048

// A cpuQueue is an entry of the kernel's map of CPUs: struct bpf_cpumap_val.
type cpuQueue struct{ Size, Program uint32 }

// spreading lets frames meet what is planned on other CPUs.
func spreading(p plan, cpus []int) (plan, error) {
	if p.mode == Reflect {
		return p, errors.New("frames that were handed to another CPU can't be reflected")
	}
	if err := checkOnline(cpus); err != nil {
		return p, err
	}
	then := p
	p.mode = spread
	p.load = func(h *hook, _ ebpf.AttachType) (*ebpf.Collection, error) {
		c, err := then.load(h, ebpf.AttachXDPCPUMap)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return loadSpread(h.counts, cpus, c.Programs[string(then.mode)])
	}
	return p, nil
}

func loadSpread(counts *ebpf.Map, cpus []int, then *ebpf.Program) (*ebpf.Collection, error) {
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[guestVarNumCpus].Set(uint32(len(cpus))); err != nil {
		return nil, fmt.Errorf("setting up CPUs: %w", err)
	}
	spec.Maps[guestMapCpus].MaxEntries = uint32(slices.Max(cpus)) + 1
	spec.Maps[guestMapCpuList].MaxEntries = uint32(len(cpus))
	c, err := load(spec, spread, ebpf.AttachNone, map[string]*ebpf.Map{guestMapCounts: counts})
	if err != nil {
		return nil, err
	}
	for i, cpu := range cpus {
		err = errors.Join(err,
			c.Maps[guestMapCpus].Put(uint32(cpu), cpuQueue{spreadQueue, uint32(then.FD())}),
			c.Maps[guestMapCpuList].Put(uint32(i), uint32(cpu)))
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("setting up CPUs %v: %w", cpus, err)
	}
	return c, nil
}

// behind gives the program that frames meet on the CPUs which p hands them to.
func behind(p *ebpf.Program) (*ebpf.Program, Mode, error) {
	cpus, err := spreadList(p)
	if err != nil {
		return nil, "", err
	}
	queues, err := runningMap(p, guestMapCpus)
	if err != nil {
		return nil, "", err
	}
	defer queues.Close()
	var q cpuQueue
	if err := queues.Lookup(uint32(cpus[0]), &q); err != nil {
		return nil, "", fmt.Errorf("reading the program of CPU %d: %w", cpus[0], err)
	}
	then, err := ebpf.NewProgramFromID(ebpf.ProgramID(q.Program))
	if err != nil {
		return nil, "", fmt.Errorf("reading the program of CPU %d: %w", cpus[0], err)
	}
	info, err := then.Info()
	if err != nil {
		then.Close()
		return nil, "", fmt.Errorf("reading the program of CPU %d: %w", cpus[0], err)
	}
	return then, Mode(info.Name), nil
}

func spreadList(p *ebpf.Program) ([]int, error) {
	list, err := runningMap(p, guestMapCpuList)
	if err != nil {
		return nil, err
	}
	defer list.Close()
	var cpus []int
	for i := range list.MaxEntries() {
		var cpu uint32
		if err := list.Lookup(i, &cpu); err != nil {
			return nil, fmt.Errorf("reading the CPUs that frames are spread over: %w", err)
		}
		cpus = append(cpus, int(cpu))
	}
	return cpus, nil
}

// spreadOver gives the CPUs that frames are spread over; none if they are not.
func (h *hook) spreadOver() ([]int, error) {
	p, mode, err := h.first()
	if err != nil || p == nil {
		return nil, err
	}
	defer p.Close()
	if mode != spread {
		return nil, nil
	}
	return spreadList(p)
}

// checkOnline refuses CPUs that would never take a frame.
func checkOnline(cpus []int) error {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return fmt.Errorf("looking for the CPUs that are online: %w", err)
	}
	online, err := ParseCPUs(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("looking for the CPUs that are online: %w", err)
	}
	for _, cpu := range cpus {
		if !slices.Contains(online, cpu) {
			return fmt.Errorf("CPU %d is not online: those that are are %s", cpu, strings.TrimSpace(string(text)))
		}
	}
	return nil
}

// maxCPU bounds the memory that a list of CPUs takes.
const maxCPU = 8191

// ParseCPUs reads a list of CPUs as the kernel writes it, like 0-3,5. Each is named once.
func ParseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, errLast := strconv.Atoi(last)
		if err != nil || errLast != nil || a < 0 || b < a || b > maxCPU {
			return nil, fmt.Errorf("reading CPUs %q: want a list like 0-3,5", list)
		}
		for cpu := a; cpu <= b; cpu++ {
			if slices.Contains(cpus, cpu) {
				return nil, fmt.Errorf("reading CPUs %q: %d is there twice", list, cpu)
			}
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
