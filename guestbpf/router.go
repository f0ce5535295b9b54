package guestbpf

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// A router is what devices that packets are routed between have in common.
type router struct {
	mode    Mode
	devices []*device
	maps    map[string]*ebpf.Map
	refresh time.Duration // how often a packet to each neighbour goes through the stack; 0: never
	// ingresses are the maps that each device has of its own, by its index.
	ingresses map[int]*ebpf.Map

	ways  map[way]guestIngress       // as the maps have them
	vlans map[uint32]guestVlanDevice // as the map has them
}

// A way in is a device's, without a tag, or a VLAN's.
type way struct{ ifindex, vid int }

// refreshEvery is how often a packet to each neighbour goes through the stack. A kernel
// that sees one waits for 5 s and then probes the neighbour.
const refreshEvery = 5 * time.Second

// sharedMaps are those of the router. What a program does not use is not made.
var sharedMaps = map[Mode][]string{
	L3fwdFIB: {guestMapRouters, guestMapVlanDevices, guestMapRefreshed},
	L3fwdRoutes: {
		guestMapRouters, guestMapVlanDevices, guestMapRefreshed, guestMapRoutes4, guestMapRoutes6, guestMapNeighbours, guestMapLease,
	},
}

func newRouter(mode Mode, devices []*device) (r *router, err error) {
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	r = &router{
		mode: mode, devices: devices, refresh: refreshEvery, maps: map[string]*ebpf.Map{}, ingresses: map[int]*ebpf.Map{},
		ways: map[way]guestIngress{}, vlans: map[uint32]guestVlanDevice{},
	}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for _, name := range sharedMaps[mode] {
		if r.maps[name], err = ebpf.NewMap(spec.Maps[name]); err != nil {
			return nil, fmt.Errorf("making map %s: %w", name, whole(err))
		}
	}
	for _, d := range devices {
		if err := d.checkTags(); err != nil {
			return nil, err
		}
		if d.master != 0 {
			return nil, fmt.Errorf("%s is part of %s, which gets its packets: route there, or take it out", d.name, deviceName(d.master))
		}
		if r.ingresses[d.ifindex], err = ebpf.NewMap(spec.Maps[guestMapIngresses]); err != nil {
			return nil, fmt.Errorf("making map %s: %w", guestMapIngresses, whole(err))
		}
		if err := r.maps[guestMapRouters].Put(uint32(d.ifindex), uint32(d.ifindex)); err != nil {
			return nil, fmt.Errorf("setting up forwarding to %s: %w", d.name, err)
		}
	}
	return r, nil
}

func (r *router) close() {
	for _, m := range r.maps {
		m.Close()
	}
	for _, m := range r.ingresses {
		m.Close()
	}
}

// load loads the program of one of the devices.
func (r *router) load(h *hook, as ebpf.AttachType) (*ebpf.Collection, error) {
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	every, err := jiffies(r.refresh)
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[guestVarRefreshEvery].Set(every); err != nil {
		return nil, fmt.Errorf("setting up routing: %w", err)
	}
	there := map[string]*ebpf.Map{guestMapCounts: h.counts, guestMapIngresses: r.ingresses[h.ifindex]}
	for name, m := range r.maps {
		there[name] = m
	}
	return load(spec, r.mode, as, there)
}

// loadRenew loads the program that says that routes still hold.
func (r *router) loadRenew() (*ebpf.Program, error) {
	length, err := jiffies(routeLease)
	if err != nil {
		return nil, err
	}
	if err := r.maps[guestMapLease].Put(uint32(0), guestRouteLease{Length: length}); err != nil {
		return nil, fmt.Errorf("setting up routing: %w", err)
	}
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	c, err := load(spec, guestProgRenew, ebpf.AttachNone, r.maps)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.DetachProgram(guestProgRenew), nil
}

// endLease makes every frame pass from now on.
func (r *router) endLease() error {
	if err := r.maps[guestMapLease].Put(uint32(0), guestRouteLease{}); err != nil {
		return fmt.Errorf("ending routing: %w", err)
	}
	return nil
}

// setDevices tells the programs by which devices packets come and leave, and what of
// them is routed.
func (r *router) setDevices(all map[int]*device, families func(*device) guestFamilyBit) error {
	ways, vlans := map[way]guestIngress{}, map[uint32]guestVlanDevice{}
	for _, d := range all {
		below := d.ifindex
		if d.vid != 0 {
			below = d.carrier
		}
		if r.ingresses[below] == nil {
			continue
		}
		ways[way{below, d.vid}] = guestIngress{Ifindex: uint32(d.ifindex), Families: uint8(families(d)), Mac: d.mac}
		if d.vid != 0 {
			vlans[uint32(d.ifindex)] = guestVlanDevice{Carrier: uint32(below), Vid: uint32(d.vid)}
		}
	}
	return errors.Join(r.setWays(ways), r.setVLANs(vlans))
}

func (r *router) setWays(ways map[way]guestIngress) error {
	for w := range r.ways {
		if _, there := ways[w]; !there {
			ways[w] = guestIngress{}
		}
	}
	for w, in := range ways {
		if r.ways[w] == in {
			continue
		}
		if err := r.ingresses[w.ifindex].Put(uint32(w.vid), in); err != nil {
			return fmt.Errorf("setting what comes by device %d, VLAN %d: %w", w.ifindex, w.vid, err)
		}
		r.ways[w] = in
	}
	return nil
}

func (r *router) setVLANs(vlans map[uint32]guestVlanDevice) error {
	devices := r.maps[guestMapVlanDevices]
	for ifindex := range r.vlans {
		if _, there := vlans[ifindex]; !there {
			if err := devices.Delete(ifindex); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("removing VLAN device %d: %w", ifindex, err)
			}
		}
	}
	for ifindex, v := range vlans {
		if r.vlans[ifindex] == v {
			continue
		}
		if err := devices.Put(ifindex, v); err != nil {
			return fmt.Errorf("setting VLAN device %d: %w", ifindex, err)
		}
	}
	r.vlans = vlans
	return nil
}
