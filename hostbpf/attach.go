package hostbpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/tapswitch/tapswitch/vswitch"
	"golang.org/x/sys/unix"
)

// hookNames are the programs by role and hook, and the names of their pins.
var hookNames = map[vswitch.Role][vswitch.NumHooks]string{
	vswitch.RoleUplink: {vswitch.HookTC: hooksProgUplinkRx, vswitch.HookXDP: hooksProgUplinkRxXdp},
	vswitch.RoleGuest:  {vswitch.HookTC: hooksProgGuestRx, vswitch.HookXDP: hooksProgGuestRxXdp},
}

// program gives a hook's program.
func (d *Datapath) program(role vswitch.Role, at vswitch.Hook) *ebpf.Program {
	switch hookNames[role][at] {
	case hooksProgUplinkRx:
		return d.programs.UplinkRx
	case hooksProgUplinkRxXdp:
		return d.programs.UplinkRxXdp
	case hooksProgGuestRx:
		return d.programs.GuestRx
	default:
		return d.programs.GuestRxXdp
	}
}

// A hook is a program attached to a device's ingress. It stays attached when
// the process ends.
type hook interface {
	// update swaps the program without a gap.
	update(*ebpf.Program) error
	// detach takes the program off; a device that is gone is no error.
	detach() error
	// close lets go of it and leaves it attached.
	close() error
	// kind says how it is attached, for people.
	kind() string
}

// pinnedLink is a hook held by a pinned BPF link. It goes when both its pin and
// its descriptor do.
type pinnedLink struct {
	link.Link
	name string // of the kind
}

func (l *pinnedLink) update(p *ebpf.Program) error { return l.Link.Update(p) }
func (l *pinnedLink) close() error                 { return l.Link.Close() }
func (l *pinnedLink) kind() string                 { return l.name }
func (l *pinnedLink) detach() error {
	return errors.Join(l.Unpin(), l.Link.Close())
}

var kindOf = [vswitch.NumHooks]string{vswitch.HookTC: "tcx", vswitch.HookXDP: "xdp native"}

// attach puts the role's program at a hook of a device, unless somebody else's is
// there.
func (d *Datapath) attach(c vswitch.PortConfig, at vswitch.Hook) (hook, error) {
	if at == vswitch.HookXDP {
		return d.attachXDP(c)
	}
	found, err := foreignTC(slices.Values([]int{c.Ifindex}), nil)
	if err != nil {
		return nil, err
	}
	for _, reasons := range found {
		return nil, &vswitch.HeldError{Reason: reasons[0]}
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Program: d.program(c.Role, at), Interface: c.Ifindex, Attach: ebpf.AttachTCXIngress,
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return attachClsact(c.Ifindex, d.program(c.Role, at))
	}
	if err != nil {
		return nil, fmt.Errorf("attaching %s to %s: %w", hookNames[c.Role][at], deviceName(c.Ifindex), err)
	}
	return d.pin(linkName(c.Role, at, c.Ifindex), at, l)
}

// attachXDP puts the program on the device that carries the port's frames, where it
// may be already for another port.
func (d *Datapath) attachXDP(c vswitch.PortConfig) (hook, error) {
	device := c.XDPDevice()
	if s := d.shared[device]; s != nil {
		s.ports++
		return s, nil
	}
	if reason, err := foreignXDP(device); err != nil {
		return nil, err
	} else if reason != nil {
		if device != c.Ifindex { // its frames meet the bridge's port after that
			return nil, noXDP("%s", reason.Text)
		}
		return nil, &vswitch.HeldError{Reason: *reason}
	}
	if err := checkXDPFeatures(device); err != nil {
		return nil, err
	}
	l, err := link.AttachXDP(link.XDPOptions{
		Program: d.program(c.Role, vswitch.HookXDP), Interface: device, Flags: link.XDPDriverMode,
	})
	if err != nil {
		return nil, xdpRefused(device, err)
	}
	h, err := d.pin(linkName(c.Role, vswitch.HookXDP, device), vswitch.HookXDP, l)
	if err != nil {
		return nil, err
	}
	return d.share(device, h, 1), nil
}

// xdpRefused puts what a driver means by its errno into words.
func xdpRefused(ifindex int, err error) error {
	reason := "native XDP was refused: " + err.Error()
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return &vswitch.HeldError{Reason: holdForeign("an XDP program", ifindex, "ip link show")}
	case errors.Is(err, unix.EOPNOTSUPP):
		reason = "the driver has no native XDP"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		reason = fmt.Sprintf("the driver refused native XDP (%v): most often its MTU is too large or it has too few queues for the CPUs; compare 'ip link show %s' and 'ethtool -l %[2]s' with its manual",
			err, deviceName(ifindex))
	}
	return noXDP("%s", reason)
}

// noXDP is how a device is refused its XDP hook. tc still serves it.
func noXDP(format string, args ...any) error {
	return &vswitch.HeldError{Reason: withoutXDP(format, args...)}
}

func withoutXDP(format string, args ...any) vswitch.HoldReason {
	return vswitch.HoldReason{Code: vswitch.HoldNoXDP, Text: fmt.Sprintf(format, args...) + "; its frames go by tc"}
}

func linkName(role vswitch.Role, at vswitch.Hook, ifindex int) string {
	return fmt.Sprintf("%s-%d", hookNames[role][at], ifindex)
}

func (d *Datapath) pin(name string, at vswitch.Hook, l link.Link) (hook, error) {
	path := d.pins.linkPath(name)
	// A pin of that name belongs to a device that is gone: numbers of devices
	// are not used again while the device is there.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		l.Close()
		return nil, fmt.Errorf("removing a stale pin: %w", err)
	}
	if err := l.Pin(path); err != nil {
		l.Close()
		return nil, fmt.Errorf("pinning %s: %w", path, err)
	}
	return &pinnedLink{Link: l, name: kindOf[at]}, nil
}

// A sharedHook is an XDP program that several ports have: those whose frames one
// device carries. It is detached with the last of them.
type sharedHook struct {
	hook
	ports int
	gone  func()
}

// share makes a device's hook one for some ports.
func (d *Datapath) share(device int, h hook, ports int) *sharedHook {
	d.shared[device] = &sharedHook{h, ports, func() { delete(d.shared, device) }}
	return d.shared[device]
}

func (s *sharedHook) detach() error { return s.drop(s.hook.detach) }
func (s *sharedHook) close() error  { return s.drop(s.hook.close) }

func (s *sharedHook) drop(last func() error) error {
	if s.ports--; s.ports > 0 {
		return nil
	}
	s.gone()
	return last()
}

// hooks are what is attached to one port.
type hooks [vswitch.NumHooks]hook

func (h hooks) detach() (err error) {
	for _, at := range h {
		if at != nil {
			err = errors.Join(err, at.detach())
		}
	}
	return err
}

func (h hooks) close() {
	for _, at := range h {
		if at != nil {
			at.close()
		}
	}
}

// adoptHooks takes over what is attached, and swaps in this process's programs.
// Links whose devices are gone are removed.
func (d *Datapath) adoptHooks() (map[int]hooks, error) {
	names, err := d.pins.links()
	if err != nil {
		return nil, err
	}
	all := map[int]hooks{}
	keep := func(ifindex int, at vswitch.Hook, h hook) {
		of := all[ifindex]
		of[at] = h
		all[ifindex] = of
	}
	for _, name := range names {
		role, at, ifindex, ok := parseLinkName(name)
		if !ok {
			continue
		}
		l, err := link.LoadPinnedLink(d.pins.linkPath(name), nil)
		if err != nil {
			return all, fmt.Errorf("adopting pinned link %s: %w", name, err)
		}
		h := &pinnedLink{Link: l, name: kindOf[at]}
		if err := h.update(d.program(role, at)); err != nil {
			// Its device is gone, and nothing else makes an update fail.
			if err := h.detach(); err != nil {
				return all, fmt.Errorf("removing dead link %s: %w", name, err)
			}
			continue
		}
		keep(ifindex, at, h)
	}
	for slot := range d.ports.slots {
		p := &d.ports.slots[slot]
		if p.Ifindex == 0 || all[int(p.Ifindex)][vswitch.HookTC] != nil {
			continue
		}
		h, err := adoptClsact(int(p.Ifindex), d.program(vswitch.Role(p.Role), vswitch.HookTC))
		if err == nil && h != nil {
			keep(int(p.Ifindex), vswitch.HookTC, h)
		}
	}
	return all, nil
}

// parseLinkName is the inverse of linkName; ok is false for links that are not
// on a device.
func parseLinkName(s string) (role vswitch.Role, at vswitch.Hook, ifindex int, ok bool) {
	program, number, _ := strings.Cut(s, "-")
	ifindex, err := strconv.Atoi(number)
	if err != nil {
		return 0, 0, 0, false
	}
	for role, names := range hookNames {
		for at, name := range names {
			if name == program {
				return role, vswitch.Hook(at), ifindex, true
			}
		}
	}
	return 0, 0, 0, false
}
