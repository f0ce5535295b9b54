package guestbpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// A hook is the entry program on a device, with the place of the program that does
// the work. It stays when the process ends.
type hook struct {
	ifindex  int
	dir      string
	link     link.Link
	programs *ebpf.Map // one entry
	counts   *ebpf.Map
}

func hookDir(pins string, ifindex int) string { return filepath.Join(pins, strconv.Itoa(ifindex)) }

// openHook opens what is pinned for a device. The error is os.ErrNotExist if nothing
// is, or if what is there was of a device that is gone.
func openHook(pins string, ifindex int) (_ *hook, err error) {
	h := &hook{ifindex: ifindex, dir: hookDir(pins, ifindex)}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	open := func(name string, load func(path string) error) {
		if err == nil {
			if err = load(filepath.Join(h.dir, name)); err != nil {
				err = fmt.Errorf("opening pin %s of device %d: %w", name, ifindex, err)
			}
		}
	}
	open(pinLink, func(path string) (err error) {
		h.link, err = link.LoadPinnedLink(path, nil)
		return err
	})
	open(pinPrograms, func(path string) (err error) {
		h.programs, err = ebpf.LoadPinnedMap(path, nil)
		return err
	})
	open(pinCounts, func(path string) (err error) {
		h.counts, err = ebpf.LoadPinnedMap(path, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	info, err := h.link.Info()
	if err != nil {
		return nil, fmt.Errorf("reading the link to device %d: %w", ifindex, err)
	}
	if x := info.XDP(); x == nil || int(x.Ifindex) != ifindex {
		return nil, fmt.Errorf("device %d is gone: %w", ifindex, os.ErrNotExist)
	}
	return h, nil
}

func (h *hook) close() {
	if h.link != nil {
		h.link.Close()
	}
	h.programs.Close()
	h.counts.Close()
}

// makeHook attaches the entry program to a device, with nothing for it to do yet.
func makeHook(pins string, d *device) (h *hook, err error) {
	if d.xdp != 0 {
		return nil, foreign(d)
	}
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	counts, err := ebpf.NewMap(spec.Maps[guestMapCounts])
	if err != nil {
		return nil, fmt.Errorf("making the counters: %w", whole(err))
	}
	defer func() {
		if err != nil {
			counts.Close()
		}
	}()
	entry, err := load(spec, guestProgTapswitchGuest, ebpf.AttachNone, map[string]*ebpf.Map{guestMapCounts: counts})
	if err != nil {
		return nil, err
	}
	defer entry.Close()
	program := entry.Programs[guestProgTapswitchGuest]
	l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: d.ifindex, Flags: link.XDPDriverMode})
	if err != nil {
		if words := d.refusal(program.FD()); words != nil {
			err = words
		}
		return nil, fmt.Errorf("attaching to %s by native XDP: %w", d.name, err)
	}
	programs, err := entry.Maps[guestMapPrograms].Clone()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	h = &hook{ifindex: d.ifindex, dir: hookDir(pins, d.ifindex), link: l, programs: programs, counts: counts}
	if err := h.pin(pins); err != nil {
		return nil, errors.Join(fmt.Errorf("pinning what is attached to %s: %w", d.name, err), l.Close(), programs.Close())
	}
	return h, nil
}

// pin makes the hook last. Its directory appears with all that is in it.
func (h *hook) pin(pins string) error {
	dir := filepath.Join(pins, unfinished+strconv.Itoa(h.ifindex))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err := errors.Join(
		h.link.Pin(filepath.Join(dir, pinLink)),
		h.programs.Pin(filepath.Join(dir, pinPrograms)),
		h.counts.Pin(filepath.Join(dir, pinCounts)),
	)
	if err == nil {
		err = os.Rename(dir, h.dir)
	}
	if err != nil {
		return errors.Join(err, removePins(dir))
	}
	return nil
}

// foreign says whose program is on a device.
func foreign(d *device) error {
	what := "XDP program " + strconv.Itoa(int(d.xdp))
	if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(d.xdp)); err == nil {
		if info, err := p.Info(); err == nil && info.Name != "" {
			what += " (" + info.Name + ")"
		}
		p.Close()
	}
	return fmt.Errorf("%s of somebody else is on %s: take it off if it is not needed (see 'ip link show %s')", what, d.name, d.name)
}

// run makes the hook's frames meet a program from now on, in one step.
func (h *hook) run(p *ebpf.Program) error {
	if err := h.programs.Put(uint32(0), p); err != nil {
		return fmt.Errorf("setting the program of device %d: %w", h.ifindex, err)
	}
	return nil
}

// running gives the program that frames meet, on the CPUs that they are spread over if
// they are, with its mode. Both are nothing if there is none.
func (h *hook) running() (*ebpf.Program, Mode, error) {
	p, mode, err := h.first()
	if err != nil || p == nil || mode != spread {
		return p, mode, err
	}
	defer p.Close()
	return behind(p)
}

// first gives the program that frames meet first, with its name.
func (h *hook) first() (*ebpf.Program, Mode, error) {
	var p *ebpf.Program
	err := h.programs.Lookup(uint32(0), &p)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the program of device %d: %w", h.ifindex, err)
	}
	info, err := p.Info()
	if err != nil {
		p.Close()
		return nil, "", fmt.Errorf("reading the program of device %d: %w", h.ifindex, err)
	}
	return p, Mode(info.Name), nil
}

// runningMap opens a map of the program that frames meet. The error is
// os.ErrNotExist if it has none of that name.
func runningMap(p *ebpf.Program, name string) (*ebpf.Map, error) {
	info, err := p.Info()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", p, err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil, fmt.Errorf("opening map %d of %s: %w", id, p, err)
		}
		if info, err := m.Info(); err == nil && info.Name == name {
			return m, nil
		}
		m.Close()
	}
	return nil, fmt.Errorf("looking for map %s of %s: %w", name, p, os.ErrNotExist)
}

// partners gives the indexes of the devices that frames are forwarded to, among which
// it may be itself.
func (h *hook) partners() ([]int, error) {
	p, mode, err := h.running()
	if err != nil || p == nil {
		return nil, err
	}
	defer p.Close()
	name := map[Mode]string{L2fwd: guestMapDevices, L3fwdFIB: guestMapRouters, L3fwdRoutes: guestMapRouters}[mode]
	if name == "" {
		return nil, nil
	}
	devices, err := runningMap(p, name)
	if err != nil {
		return nil, err
	}
	defer devices.Close()
	var (
		found        []int
		key, ifindex uint32
	)
	all := devices.Iterate()
	for all.Next(&key, &ifindex) {
		found = append(found, int(ifindex))
	}
	// A device that is gone has left the map.
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("reading where device %d forwards to: %w", h.ifindex, err)
	}
	return found, nil
}

// stop lets the hook's frames pass to the stack.
func (h *hook) stop() error {
	if err := h.programs.Delete(uint32(0)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("taking the program from device %d: %w", h.ifindex, err)
	}
	return nil
}

// detach takes the entry program off at once, and removes the pins.
func (h *hook) detach() error {
	defer h.close()
	if err := h.link.Detach(); err != nil {
		return fmt.Errorf("detaching from device %d: %w", h.ifindex, err)
	}
	return errors.Join(h.hearOwn(), removePins(h.dir))
}
