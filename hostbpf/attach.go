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

// The hooks, as their pins are named.
const (
	hookUplinkRxXDP = "uplink_rx_xdp"
	hookGuestRx     = "guest_rx"
)

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

var kindOf = map[string]string{hookUplinkRxXDP: "xdp native", hookGuestRx: "tcx"}

func linkName(hook string, ifindex int) string { return fmt.Sprintf("%s-%d", hook, ifindex) }

// attach puts the role's program on the ingress of a device, unless somebody
// else's is there.
func (d *Datapath) attach(c vswitch.PortConfig) (hook, error) {
	found, err := foreignTC(slices.Values([]int{c.Ifindex}), nil)
	if err != nil {
		return nil, err
	}
	for _, reasons := range found {
		return nil, &vswitch.HeldError{Reason: reasons[0]}
	}
	if c.Role == vswitch.RoleGuest {
		return d.attachGuestRx(c.Ifindex)
	}
	return d.attachUplinkRxXDP(c.Ifindex)
}

func (d *Datapath) attachUplinkRxXDP(ifindex int) (hook, error) {
	if reason, err := foreignXDP(ifindex); err != nil {
		return nil, err
	} else if reason != nil {
		return nil, &vswitch.HeldError{Reason: *reason}
	}
	if err := checkXDPFeatures(ifindex); err != nil {
		return nil, err
	}
	l, err := link.AttachXDP(link.XDPOptions{
		Program: d.programs.UplinkRxXdp, Interface: ifindex, Flags: link.XDPDriverMode,
	})
	if err != nil {
		return nil, xdpRefused(ifindex, err)
	}
	return d.pin(hookUplinkRxXDP, ifindex, l)
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
	return &vswitch.HeldError{Reason: vswitch.Hold(vswitch.HoldUnsupported, "%s", reason)}
}

func (d *Datapath) attachGuestRx(ifindex int) (hook, error) {
	l, err := link.AttachTCX(link.TCXOptions{
		Program: d.programs.GuestRx, Interface: ifindex, Attach: ebpf.AttachTCXIngress,
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return attachClsact(ifindex, d.programs.GuestRx)
	}
	if err != nil {
		return nil, fmt.Errorf("attaching %s to %s: %w", hookGuestRx, deviceName(ifindex), err)
	}
	return d.pin(hookGuestRx, ifindex, l)
}

func (d *Datapath) pin(name string, ifindex int, l link.Link) (hook, error) {
	path := d.pins.linkPath(linkName(name, ifindex))
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
	return &pinnedLink{Link: l, name: kindOf[name]}, nil
}

// adoptHooks takes over what is attached, and swaps in this process's programs.
// Links whose devices are gone are removed.
func (d *Datapath) adoptHooks() (map[int]hook, error) {
	names, err := d.pins.links()
	if err != nil {
		return nil, err
	}
	hooks := map[int]hook{}
	for _, name := range names {
		at, ifindex, ok := parseLinkName(name)
		if !ok {
			continue
		}
		l, err := link.LoadPinnedLink(d.pins.linkPath(name), nil)
		if err != nil {
			return hooks, fmt.Errorf("adopting pinned link %s: %w", name, err)
		}
		h := &pinnedLink{Link: l, name: kindOf[at]}
		if err := h.update(d.hookProgram(at)); err != nil {
			// Its device is gone, and nothing else makes an update fail.
			if err := h.detach(); err != nil {
				return hooks, fmt.Errorf("removing dead link %s: %w", name, err)
			}
			continue
		}
		hooks[ifindex] = h
	}
	for slot := range d.ports.slots {
		ifindex := int(d.ports.slots[slot].Ifindex)
		if h, err := adoptClsact(ifindex, d.programs.GuestRx); ifindex != 0 && err == nil && h != nil {
			hooks[ifindex] = h
		}
	}
	return hooks, nil
}

func (d *Datapath) hookProgram(name string) *ebpf.Program {
	if name == hookGuestRx {
		return d.programs.GuestRx
	}
	return d.programs.UplinkRxXdp
}

// parseLinkName is the inverse of linkName; ok is false for links that are not
// on a device.
func parseLinkName(s string) (hook string, ifindex int, ok bool) {
	hook, number, ok := strings.Cut(s, "-")
	if !ok {
		return "", 0, false
	}
	ifindex, err := strconv.Atoi(number)
	return hook, ifindex, err == nil && kindOf[hook] != ""
}
