package guestbpf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/tapswitch/tapswitch/guestbpf/rules"
)

// A Mode says what becomes of a device's frames.
type Mode string

// The modes, which are the programs' names too.
const (
	Pass    Mode = guestProgPass    // the stack gets them, counted
	Reflect Mode = guestProgReflect // they go back, addresses swapped
	Drop    Mode = guestProgDrop    // rules say which are dropped
	L2fwd   Mode = guestProgL2fwd   // they leave by another device

	L3fwdFIB    Mode = guestProgL3fwdFib    // packets are routed, as the kernel says for each
	L3fwdRoutes Mode = guestProgL3fwdRoutes // packets are routed by tables that follow the kernel's
)

// readSpec gives the compiled programs.
func readSpec() (*ebpf.CollectionSpec, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lifting the limit on locked memory, to which Linux before 5.11 holds maps: %w: run it as root", err)
	}
	spec, err := loadGuest()
	if err != nil {
		return nil, fmt.Errorf("reading the programs: %w", err)
	}
	return spec, nil
}

// load loads one program with maps of its own, but for those that are there already. It is
// to be attached as the kernel's type says: to a device by none, or to a CPU's queue.
func load(spec *ebpf.CollectionSpec, mode Mode, as ebpf.AttachType, there map[string]*ebpf.Map) (*ebpf.Collection, error) {
	only := &ebpf.CollectionSpec{
		Maps:      map[string]*ebpf.MapSpec{},
		Variables: map[string]*ebpf.VariableSpec{},
		Programs:  map[string]*ebpf.ProgramSpec{string(mode): spec.Programs[string(mode)]},
		Types:     spec.Types, ByteOrder: spec.ByteOrder,
	}
	only.Programs[string(mode)].AttachType = as
	for _, ins := range only.Programs[string(mode)].Instructions {
		if ref := ins.Reference(); ins.IsLoadFromMap() && spec.Maps[ref] != nil {
			only.Maps[ref] = spec.Maps[ref]
		}
	}
	for name, v := range spec.Variables {
		if only.Maps[v.SectionName] != nil {
			only.Variables[name] = v
		}
	}
	given := map[string]*ebpf.Map{}
	for name, m := range there {
		if only.Maps[name] != nil {
			given[name] = m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(only, ebpf.CollectionOptions{MapReplacements: given})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return nil, fmt.Errorf("joining what another version has attached: %w: detach it first", err)
	}
	if err != nil {
		return nil, fmt.Errorf("loading program %s: %w", mode, whole(err))
	}
	return c, nil
}

// whole makes the verifier's log part of an error's text, and says what a lack of
// privileges means.
func whole(err error) error {
	if v := (*ebpf.VerifierError)(nil); errors.As(err, &v) {
		return fmt.Errorf("%w\n%s", err, strings.Join(v.Log, "\n"))
	}
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w: run it as root", err)
	}
	return err
}

// loadDrop loads the program of a set of rules.
func loadDrop(counts *ebpf.Map, set []rules.Rule, as ebpf.AttachType) (*ebpf.Collection, error) {
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	t := compile(set)
	if err := spec.Variables[guestVarFields].Set(uint32(t.fields)); err != nil {
		return nil, fmt.Errorf("setting up rules: %w", err)
	}
	// What the rules don't use takes no memory.
	if t.numbers == nil {
		spec.Maps[guestMapNumbers].MaxEntries = 1
	}
	if !slices.ContainsFunc(set, func(r rules.Rule) bool { return r.PerSource }) {
		spec.Maps[guestMapSources].MaxEntries = 1
	}
	c, err := load(spec, Drop, as, map[string]*ebpf.Map{guestMapCounts: counts})
	if err != nil {
		return nil, err
	}
	if err := t.fill(c.Maps); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// fill writes the tables into new maps.
func (t *tables) fill(maps map[string]*ebpf.Map) error {
	prefixes := make([]guestPrefixKey, 0, len(t.prefixes))
	bits := make([]guestRuleBits, 0, len(t.prefixes))
	for key, b := range t.prefixes {
		prefixes, bits = append(prefixes, key), append(bits, b)
	}
	if m := maps[guestMapPrefixes]; m != nil {
		for i := range prefixes {
			if err := m.Put(prefixes[i], bits[i]); err != nil {
				return fmt.Errorf("writing prefixes: %w", err)
			}
		}
	}
	return errors.Join(
		fillArray(maps[guestMapValues], t.values),
		fillArray(maps[guestMapNumbers], t.numbers),
		fillArray(maps[guestMapRules], t.rules),
	)
}

func fillArray[T any](m *ebpf.Map, values []T) error {
	if m == nil || len(values) == 0 {
		return nil
	}
	keys := make([]uint32, len(values))
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("writing %d entries of %s: %w", len(values), m, err)
	}
	return nil
}

// loadL2fwd loads the program that sends frames to another device.
func loadL2fwd(counts *ebpf.Map, peer guestL2fwdPeer, as ebpf.AttachType) (*ebpf.Collection, error) {
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[guestVarPeer].Set(peer); err != nil {
		return nil, fmt.Errorf("setting up forwarding: %w", err)
	}
	c, err := load(spec, L2fwd, as, map[string]*ebpf.Map{guestMapCounts: counts})
	if err != nil {
		return nil, err
	}
	if err := c.Maps[guestMapDevices].Put(uint32(0), peer.Ifindex); err != nil {
		c.Close()
		return nil, fmt.Errorf("setting up forwarding to device %d: %w", peer.Ifindex, err)
	}
	return c, nil
}

// loadPlain loads a program that is told nothing.
func loadPlain(counts *ebpf.Map, mode Mode, as ebpf.AttachType) (*ebpf.Collection, error) {
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	return load(spec, mode, as, map[string]*ebpf.Map{guestMapCounts: counts})
}
