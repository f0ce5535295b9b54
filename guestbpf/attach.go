package guestbpf

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/tapswitch/tapswitch/guestbpf/rules"
)

// A Guest is this machine, whose devices programs are attached to. The zero value
// has its pins at DefaultPins.
type Guest struct {
	// Pins is a directory in a BPF file system.
	Pins string
	// CPUs are those that the frames of what is attached are spread over, by their flow;
	// there they meet what is attached. None: they meet it on the CPU that they come to.
	CPUs []int
}

func (g Guest) pins() string {
	if g.Pins == "" {
		return DefaultPins
	}
	return g.Pins
}

// AttachPass counts a device's frames. What this package has attached there before
// gives way in one step, for all modes; a program of somebody else's is an error.
func (g Guest) AttachPass(dev string) error { return g.attach([]string{dev}, plain(Pass)) }

// AttachReflect sends a device's unicast frames back to where they come from.
func (g Guest) AttachReflect(dev string) error { return g.attach([]string{dev}, plain(Reflect)) }

// AttachDrop drops a device's frames by rules. The rules of before are replaced in one
// step; each frame meets either all the old ones or all the new ones.
func (g Guest) AttachDrop(dev string, set []rules.Rule) error {
	return g.attach([]string{dev}, dropping(set))
}

// A plan says what frames of devices are to meet. Load loads it for one of them; done, if
// there is one, is called when that is over.
type plan struct {
	mode Mode
	load func(h *hook, as ebpf.AttachType) (*ebpf.Collection, error)
	done func()
	// promiscuous says that it is for frames to anybody.
	promiscuous bool
}

// A planner makes a plan once the devices are known.
type planner func(devices []*device) (plan, error)

func plain(mode Mode) planner {
	return func([]*device) (plan, error) {
		return plan{mode: mode, load: func(h *hook, as ebpf.AttachType) (*ebpf.Collection, error) { return loadPlain(h.counts, mode, as) }}, nil
	}
}

func dropping(set []rules.Rule) planner {
	return func([]*device) (plan, error) {
		return plan{mode: Drop, load: func(h *hook, as ebpf.AttachType) (*ebpf.Collection, error) { return loadDrop(h.counts, set, as) }}, nil
	}
}

// attach makes the frames of all the devices meet what is planned, or none.
func (g Guest) attach(names []string, planned planner) (err error) {
	unlock, err := lock(g.pins())
	if err != nil {
		return err
	}
	defer unlock()
	var devices []*device
	for _, name := range names {
		d, err := deviceByName(name)
		if err != nil {
			return err
		}
		devices = append(devices, d)
	}
	p, err := planned(devices)
	if p.done != nil {
		defer p.done()
	}
	if err != nil {
		return err
	}
	if len(g.CPUs) > 0 {
		if p, err = spreading(p, g.CPUs); err != nil {
			return err
		}
	}
	var hooks []*hook
	defer func() {
		for _, h := range hooks {
			h.close()
		}
	}()
	for _, d := range devices {
		var (
			h    *hook
			undo func() error
		)
		if h, undo, err = g.hook(d); err != nil {
			return err
		}
		hooks = append(hooks, h)
		defer func() {
			if err != nil {
				err = errors.Join(err, undo())
			}
		}()
	}
	var programs []*ebpf.Program
	for _, h := range hooks {
		if err := checkPartners(h, devices); err != nil {
			return err
		}
		var c *ebpf.Collection
		if c, err = p.load(h, ebpf.AttachNone); err != nil {
			return err
		}
		defer c.Close()
		programs = append(programs, c.Programs[string(p.mode)])
	}
	for i, h := range hooks {
		err = errors.Join(err, h.run(programs[i]))
		if p.promiscuous {
			err = errors.Join(err, h.hearAll(devices[i]))
		}
	}
	return err
}

// checkPartners refuses a device whose partners are not among those that are attached
// to: they would go on forwarding to it.
func checkPartners(h *hook, devices []*device) error {
	partners, err := h.partners()
	if err != nil {
		return err
	}
	for _, p := range partners {
		if !slices.ContainsFunc(devices, func(d *device) bool { return d.ifindex == p }) {
			return fmt.Errorf("%s forwards to %s and back: detach it first", deviceName(h.ifindex), deviceName(p))
		}
	}
	return nil
}

// hook gives the hook of a device, new if need be; undo takes a new one off again.
func (g Guest) hook(d *device) (h *hook, undo func() error, err error) {
	h, err = openHook(g.pins(), d.ifindex)
	if err == nil {
		return h, func() error { return nil }, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	// Pins of a device of that number which is gone, or was unplugged half-way.
	if err := removePins(hookDir(g.pins(), d.ifindex)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	if h, err = makeHook(g.pins(), d); err != nil {
		return nil, nil, err
	}
	return h, h.detach, nil
}

// A Pair is two devices whose frames go from one to the other, both ways.
type Pair struct {
	A, B string
	// ToB and ToA are the destination addresses that frames get on their way there,
	// six bytes, with the device's own as the source. Nil leaves both as they are.
	ToB, ToA []byte
}

// AttachL2fwd joins two devices as if by a wire. Frames that are longer than the
// other one takes, at its MTU of now, go to the stack.
func (g Guest) AttachL2fwd(p Pair) error { return g.attach([]string{p.A, p.B}, forwarding(p)) }

func forwarding(p Pair) planner {
	return func(devices []*device) (plan, error) {
		a, b := devices[0], devices[1]
		if a.ifindex == b.ifindex {
			return plan{}, fmt.Errorf("forwarding from %s to itself: use reflect", a.name)
		}
		peers := map[int]guestL2fwdPeer{a.ifindex: peerOf(b, p.ToB), b.ifindex: peerOf(a, p.ToA)}
		return plan{mode: L2fwd, promiscuous: true, load: func(h *hook, as ebpf.AttachType) (*ebpf.Collection, error) {
			return loadL2fwd(h.counts, peers[h.ifindex], as)
		}}, nil
	}
}

// The Ethernet header and a tag, which an MTU does not count.
const aboveMTU = 14 + 4

func peerOf(d *device, dest []byte) guestL2fwdPeer {
	p := guestL2fwdPeer{Ifindex: uint32(d.ifindex), MaxLen: uint32(d.mtu + aboveMTU), Source: d.mac}
	if dest != nil {
		p.Rewrite = 1
		copy(p.Dest[:], dest)
	}
	return p
}

func deviceName(ifindex int) string {
	if d, err := deviceByIndex(ifindex); err == nil {
		return d.name
	}
	return fmt.Sprintf("device %d", ifindex)
}

// ErrNotAttached says that nothing of this package is on a device.
var ErrNotAttached = errors.New("nothing of tapswitch-guest is attached")

// Detach takes off what this package has attached to a device, and to those that forward
// to it.
// It gives the names of the devices.
func (g Guest) Detach(dev string) ([]string, error) {
	d, err := deviceByName(dev)
	if err != nil {
		return nil, err
	}
	return g.detach(func(ifindex int) bool { return ifindex == d.ifindex }, dev)
}

// DetachAll takes off all that this package has attached, and removes its directory.
func (g Guest) DetachAll() ([]string, error) {
	if _, err := os.Stat(g.pins()); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	names, err := g.detach(func(int) bool { return true }, "any device")
	if err != nil && !errors.Is(err, ErrNotAttached) {
		return names, err
	}
	return names, os.Remove(g.pins())
}

func (g Guest) detach(wanted func(ifindex int) bool, what string) (names []string, err error) {
	unlock, err := lock(g.pins())
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := pinned(g.pins())
	if err != nil {
		return nil, err
	}
	hooks := map[int]*hook{}
	defer func() {
		for _, h := range hooks {
			h.close()
		}
	}()
	var take []int
	for _, ifindex := range all {
		h, err := openHook(g.pins(), ifindex)
		if errors.Is(err, os.ErrNotExist) {
			if err := removePins(hookDir(g.pins(), ifindex)); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		hooks[ifindex] = h
		if !wanted(ifindex) {
			continue
		}
		take = append(take, ifindex)
		partners, err := h.partners()
		if err != nil {
			return nil, err
		}
		take = append(take, partners...)
	}
	slices.Sort(take)
	take = slices.DeleteFunc(slices.Compact(take), func(i int) bool { return hooks[i] == nil })
	if len(take) == 0 {
		return nil, fmt.Errorf("detaching from %s: %w", what, ErrNotAttached)
	}
	// No half of a pair forwards to a device that has no program any more.
	for _, ifindex := range take {
		if err := hooks[ifindex].stop(); err != nil {
			return nil, err
		}
	}
	for _, ifindex := range take {
		names = append(names, deviceName(ifindex))
		err = errors.Join(err, hooks[ifindex].detach())
		delete(hooks, ifindex)
	}
	return names, err
}
