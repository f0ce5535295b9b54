package guestbpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// AttachFIB routes packets between devices, and VLAN devices that are on them now, as the
// kernel answers for each packet.
func (g Guest) AttachFIB(devs []string) error { return g.attach(devs, routingByFIB) }

func routingByFIB(devices []*device) (p plan, err error) {
	r, err := newRouter(L3fwdFIB, devices)
	if err != nil {
		return p, err
	}
	p = r.plan()
	p.done = r.close
	all, err := listDevices()
	if err != nil {
		return p, err
	}
	return p, r.setDevices(all, func(d *device) (bits guestFamilyBit) {
		// Whether it forwards, the kernel says with each answer.
		if d.ipv4.on {
			bits |= guestFamilyBitROUTE_IPV4
		}
		if d.ipv6.on {
			bits |= guestFamilyBitROUTE_IPV6
		}
		return bits
	})
}

// AttachRoutes routes packets between devices, and VLAN devices on them, by tables that
// follow the kernel's while the follower's Run is running. Otherwise every packet goes to
// the stack.
func (g Guest) AttachRoutes(devs []string) (*Follower, error) {
	var f *Follower
	err := g.attach(devs, func(devices []*device) (p plan, err error) {
		r, err := newRouter(L3fwdRoutes, devices)
		if err != nil {
			return p, err
		}
		f, err = newFollower(g, r)
		return r.plan(), err
	})
	if err != nil {
		if f != nil {
			f.close()
		}
		return nil, err
	}
	return f, nil
}

func (r *router) plan() plan {
	return plan{mode: r.mode, load: func(h *hook, as ebpf.AttachType) (*ebpf.Collection, error) { return r.load(h, as) }}
}

// ErrReplaced says that what this package had attached to a device is no longer there.
var ErrReplaced = errors.New("somebody has attached something else")

// checkAttached says whether a router's programs are where they were attached to, on
// those of its devices that are there.
func (g Guest) checkAttached(r *router, there map[int]*device) error {
	for _, d := range r.devices {
		if there[d.ifindex] == nil {
			continue
		}
		if err := g.checkLease(r, d); err != nil {
			return err
		}
	}
	return nil
}

func (g Guest) checkLease(r *router, d *device) error {
	h, err := openHook(g.pins(), d.ifindex)
	if err != nil {
		return fmt.Errorf("looking for what is attached to %s: %w", d.name, err)
	}
	defer h.close()
	p, mode, err := h.running()
	if err != nil {
		return err
	}
	if p == nil || mode != r.mode {
		p.Close()
		return fmt.Errorf("routing by %s: %w", d.name, ErrReplaced)
	}
	defer p.Close()
	lease, err := runningMap(p, guestMapLease)
	if err != nil {
		return err
	}
	defer lease.Close()
	have, err := mapID(lease)
	if err != nil {
		return err
	}
	want, err := mapID(r.maps[guestMapLease])
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("routing by %s: %w", d.name, ErrReplaced)
	}
	return nil
}

func mapID(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", m, err)
	}
	id, _ := info.ID()
	return id, nil
}
