package hostbpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
)

// load gives the datapath's maps, pinned before or new, and loads the programs
// against them.
func load(pins *pinDir) (maps *hooksMaps, programs *hooksPrograms, err error) {
	spec, err := loadHooks()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the datapath's programs: %w", err)
	}
	if err := checkKernel(); err != nil {
		return nil, nil, err
	}
	if errors.Is(features.HaveProgramHelper(ebpf.XDP, asm.FnXdpGetBuffLen), ebpf.ErrNotSupported) {
		expectOneBuffer(spec)
	}
	opts := &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	adopt := pins.exists()
	if adopt {
		for name, m := range spec.Maps {
			if name == ".bss" {
				continue
			}
			pinned, err := ebpf.LoadPinnedMap(pins.mapPath(name), nil)
			if err == nil {
				defer pinned.Close() // LoadAndAssign clones it
				opts.MapReplacements[name] = pinned
				err = m.Compatible(pinned)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("adopting pinned map %s: %w; stop the datapath that made it, or remove %s", name, err, pins.dir())
			}
		}
	}
	var objects struct {
		hooksMaps
		hooksPrograms
	}
	if err := spec.LoadAndAssign(&objects, opts); err != nil {
		return nil, nil, fmt.Errorf("loading the datapath's programs: %w", whole(err))
	}
	if !adopt {
		err = pins.create(objects.byName())
	}
	if err != nil {
		objects.hooksMaps.Close()
		objects.hooksPrograms.Close()
		return nil, nil, err
	}
	return &objects.hooksMaps, &objects.hooksPrograms, nil
}

// whole makes the verifier's log part of an error's text. It is cut otherwise,
// and its end alone helps nobody.
func whole(err error) error {
	if v := (*ebpf.VerifierError)(nil); errors.As(err, &v) {
		return fmt.Errorf("%w\n%s", err, strings.Join(v.Log, "\n"))
	}
	return err
}

func (m *hooksMaps) byName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		hooksMapControl: m.Control, hooksMapFdb: m.Fdb, hooksMapFlows: m.Flows, hooksMapFlushes: m.Flushes,
		hooksMapLosses: m.Losses, hooksMapPortFilters: m.PortFilters, hooksMapPortIndex: m.PortIndex, hooksMapPorts: m.Ports, hooksMapPortVlans: m.PortVlans,
		hooksMapTxPorts: m.TxPorts, hooksMapVerdicts: m.Verdicts,
	}
}

// checkKernel tells apart what the kernel lacks from what the process may not
// do, because the system call's own errors don't.
func checkKernel() error {
	if err := checkCapabilities(); err != nil {
		return err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("lifting the limit on locked memory, to which Linux before 5.11 holds maps: %w: set it to unlimited before the start", err)
	}
	for _, need := range []struct {
		err  error
		what string
	}{
		{features.HaveMapType(ebpf.DevMapHash), "DEVMAP_HASH maps (Linux 5.4)"},
	} {
		if errors.Is(need.err, ebpf.ErrNotSupported) {
			return fmt.Errorf("this kernel is too old: it lacks %s", need.what)
		}
	}
	return nil
}
