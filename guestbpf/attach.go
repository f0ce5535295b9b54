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
}

func (g Guest) pins() string {
	if g.Pins == "" {
		return DefaultPins
	}
	return g.Pins
}

// AttachPass counts a device's frames. What this package has attached there before
// gives way in one step, for all modes; a program of somebody else's is an error.
func (g Guest) AttachPass(dev string) error {
	return g.attach(dev, func(h *hook) (*ebpf.Collection, error) { return loadPlain(h.counts, Pass) }, Pass)
}

// AttachReflect sends a device's unicast frames back to where they come from.
func (g Guest) AttachReflect(dev string) error {
	return g.attach(dev, func(h *hook) (*ebpf.Collection, error) { return loadPlain(h.counts, Reflect) }, Reflect)
}

// AttachDrop drops a device's frames by rules. The rules of before are replaced in one
// step; each frame meets either all the old ones or all the new ones.
func (g Guest) AttachDrop(dev string, set []rules.Rule) error {
	return g.attach(dev, func(h *hook) (*ebpf.Collection, error) { return loadDrop(h.counts, set) }, Drop)
}

func (g Guest) attach(dev string, load func(*hook) (*ebpf.Collection, error), mode Mode) error {
	unlock, err := lock(g.pins())
	if err != nil {
		return err
	}
	defer unlock()
	d, err := deviceByName(dev)
	if err != nil {
		return err
	}
	h, undo, err := g.hook(d)
	if err != nil {
		return err
	}
	defer h.close()
	if err := checkSingle(h, d); err != nil {
		return err
	}
	c, err := load(h)
	if err != nil {
		return errors.Join(err, undo())
	}
	defer c.Close()
	return h.run(c.Programs[string(mode)])
}

// checkSingle refuses half of a pair: its other half would go on forwarding.
func checkSingle(h *hook, d *device) error {
	peer, err := h.peer()
	if err != nil || peer == 0 {
		return err
	}
	return fmt.Errorf("%s forwards to %s and back: detach it first", d.name, deviceName(peer))
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
func (g Guest) AttachL2fwd(p Pair) error {
	unlock, err := lock(g.pins())
	if err != nil {
		return err
	}
	defer unlock()
	a, err := deviceByName(p.A)
	if err != nil {
		return err
	}
	b, err := deviceByName(p.B)
	if err != nil {
		return err
	}
	if a.ifindex == b.ifindex {
		return fmt.Errorf("forwarding from %s to itself: use reflect", a.name)
	}
	ha, undoA, err := g.hook(a)
	if err != nil {
		return err
	}
	defer ha.close()
	hb, undoB, err := g.hook(b)
	if err != nil {
		return errors.Join(err, undoA())
	}
	defer hb.close()
	if err = joinHooks(ha, hb, peerOf(b, p.ToB), peerOf(a, p.ToA)); err == nil {
		err = errors.Join(ha.hearAll(a), hb.hearAll(b))
	}
	if err != nil {
		return errors.Join(err, undoA(), undoB())
	}
	return nil
}

// joinHooks lets two hooks forward to each other, or leaves both as they are.
func joinHooks(a, b *hook, toB, toA guestL2fwdPeer) error {
	for _, h := range []*hook{a, b} {
		peer, err := h.peer()
		if err != nil {
			return err
		}
		if peer != 0 && peer != a.ifindex && peer != b.ifindex {
			return fmt.Errorf("%s forwards to %s and back: detach it first", deviceName(h.ifindex), deviceName(peer))
		}
	}
	ca, err := loadL2fwd(a.counts, toB)
	if err != nil {
		return err
	}
	defer ca.Close()
	cb, err := loadL2fwd(b.counts, toA)
	if err != nil {
		return err
	}
	defer cb.Close()
	return errors.Join(a.run(ca.Programs[string(L2fwd)]), b.run(cb.Programs[string(L2fwd)]))
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

// Detach takes off what this package has attached to a device; of a pair, both halves.
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
		peer, err := h.peer()
		if err != nil {
			return nil, err
		}
		if peer != 0 {
			take = append(take, peer)
		}
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
