package oracle

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A pinned is the forwarding table that a datapath looks at, read out of its
// pinned maps: to show the table, the daemon reads the bridge's again first, and
// would so repair what the oracle is to find.
type pinned struct {
	fdb   []fdbBucket
	vlans []portVLANs
	ports []portSlot
	free  []func() error
}

// fdbBucket, portSlot and portVLANs are struct fdb_bucket, struct port and struct
// port_vlans of hostbpf/bpf/tapswitch.h.
type (
	fdbBucket [4]struct {
		key        uint64
		dest, seen uint32
	}
	portSlot struct {
		ifindex, _, _, flags, _, _ uint32
		vlan, _                    uint32
	}
	portVLANs [4096 / 32]uint64
)

// flagIsolated is PORT_ISOLATED.
const flagIsolated = 4

// isolated says whether the datapath has a port as isolated.
func (p *pinned) isolated(ifindex int) bool {
	for i := range p.ports {
		if int(p.ports[i].ifindex) == ifindex {
			return p.ports[i].flags&flagIsolated != 0
		}
	}
	return false
}

// keyUsed is FDB_USED, which is in the upper quarter of a key beside its VLAN.
const keyUsed = 0x8000

// slotOfHost stands for the host's own stack.
const slotOfHost = 0xffff

// openPinned opens the maps of the datapath pinned at dir.
func openPinned(dir string) (p *pinned, err error) {
	p = &pinned{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("opening the datapath at %s: %w", dir, err), p.close())
		}
	}()
	if p.fdb, err = mapPinned[fdbBucket](p, dir, "fdb"); err != nil {
		return nil, err
	}
	if p.ports, err = mapPinned[portSlot](p, dir, "ports"); err != nil {
		return nil, err
	}
	if p.vlans, err = mapPinned[portVLANs](p, dir, "port_vlans"); err != nil {
		return nil, err
	}
	return p, nil
}

// vlansOf gives the VLANs of the port with an ifindex, and its bridge's kind of tags, 0
// if that is not VLAN-aware.
func (p *pinned) vlansOf(ifindex int) (m membership, tpid uint16, ok bool) {
	for slot := range p.ports {
		if int(p.ports[slot].ifindex) != ifindex {
			continue
		}
		m = membership{pvid: uint16(p.ports[slot].vlan), of: map[uint16]bool{}}
		for v := range uint16(4096) {
			if bits := p.vlans[slot][v/32] >> (v % 32 * 2) & 3; bits != 0 {
				m.of[v] = bits == 3
			}
		}
		return m, uint16(p.ports[slot].vlan >> 16), true
	}
	return m, 0, false
}

func mapPinned[T any](p *pinned, dir, name string) ([]T, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "v*", "maps", name))
	if err != nil || len(paths) != 1 {
		return nil, fmt.Errorf("looking for the map %s: %d found: %w", name, len(paths), err)
	}
	m, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		return nil, fmt.Errorf("loading the map %s: %w", name, err)
	}
	defer m.Close()
	var zero T
	if uintptr(m.ValueSize()) != unsafe.Sizeof(zero) {
		return nil, fmt.Errorf("reading the map %s: its values have %d bytes, not %d", name, m.ValueSize(), unsafe.Sizeof(zero))
	}
	b, err := unix.Mmap(m.FD(), 0, int(m.ValueSize()*m.MaxEntries()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping the map %s: %w", name, err)
	}
	p.free = append(p.free, func() error { return unix.Munmap(b) })
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), m.MaxEntries()), nil
}

// entries gives the ifindex, or vswitch.Host, that each address leads to.
func (p *pinned) entries() map[fdbKey]int {
	entries := map[fdbKey]int{}
	for b := range p.fdb {
		for w := range p.fdb[b] {
			e := &p.fdb[b][w]
			if e.key == 0 {
				continue
			}
			var m mac
			for i := range m {
				m[i] = byte(e.key >> (8 * i))
			}
			key := fdbKey{m, int(e.key>>48) &^ keyUsed}
			switch slot := e.dest & 0xffff; {
			case slot == slotOfHost:
				entries[key] = vswitch.Host
			default:
				entries[key] = int(p.ports[slot].ifindex)
			}
		}
	}
	return entries
}

func (p *pinned) close() (err error) {
	for _, free := range p.free {
		err = errors.Join(err, free())
	}
	p.free = nil
	return err
}
