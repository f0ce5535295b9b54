package guestbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A station is a neighbour by its address.
type station struct {
	ifindex int
	addr    netip.Addr
}

// validNeighbour are the states in which the kernel sends to a neighbour without asking.
const validNeighbour = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// A neighbourTable is the kernel's neighbours that have an address to send to, and which
// of them a map has.
type neighbourTable struct {
	entries *ebpf.Map
	macs    map[station][6]byte
	written map[station]guestNeighbour
	changed map[station]bool
}

func newNeighbourTable(entries *ebpf.Map) *neighbourTable {
	return &neighbourTable{
		entries: entries, macs: map[station][6]byte{},
		written: map[station]guestNeighbour{}, changed: map[station]bool{},
	}
}

// list takes all neighbours from the kernel.
func (t *neighbourTable) list() error {
	for s := range t.macs {
		t.changed[s] = true
	}
	clear(t.macs)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		ask := make([]byte, unix.SizeofNdMsg)
		ask[0] = family
		err := dump(syscall.RTM_GETNEIGH, ask, func() {}, func(m syscall.NetlinkMessage) { t.hear(m.Header.Type, m.Data) })
		if err != nil {
			return fmt.Errorf("listing neighbours: %w", err)
		}
	}
	return nil
}

// hear takes the news of a neighbour.
func (t *neighbourTable) hear(kind uint16, b []byte) {
	if len(b) < unix.SizeofNdMsg || b[0] != unix.AF_INET && b[0] != unix.AF_INET6 || b[10]&unix.NTF_PROXY != 0 {
		return
	}
	attrs := attributes(b[unix.SizeofNdMsg:])
	addr, ok := netip.AddrFromSlice(attrs[unix.NDA_DST])
	if !ok {
		return
	}
	s := station{int(int32(binary.NativeEndian.Uint32(b[4:]))), addr}
	t.changed[s] = true
	mac, state := attrs[unix.NDA_LLADDR], binary.NativeEndian.Uint16(b[8:])
	if kind != syscall.RTM_NEWNEIGH || state&validNeighbour == 0 || len(mac) != 6 {
		delete(t.macs, s)
		return
	}
	t.macs[s] = [6]byte(mac)
}

// deviceChanged says that what is written of neighbours on a device may be wrong.
func (t *neighbourTable) deviceChanged(ifindex int) {
	for s := range t.macs {
		if s.ifindex == ifindex {
			t.changed[s] = true
		}
	}
}

// write brings the map in step with neighbours and devices. One for which there is no
// room is left to the kernel.
func (t *neighbourTable) write(devices map[int]*device) error {
	for s := range t.changed {
		n, there := t.entry(s, devices[s.ifindex])
		old, had := t.written[s]
		switch {
		case there && had && n == old:
		case there:
			err := t.entries.Put(neighbourKey(s), n)
			if errors.Is(err, syscall.E2BIG) {
				break
			}
			if err != nil {
				return fmt.Errorf("writing neighbour %s: %w", s.addr, err)
			}
			t.written[s] = n
		case had:
			if err := t.entries.Delete(neighbourKey(s)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("removing neighbour %s: %w", s.addr, err)
			}
			delete(t.written, s)
		}
		delete(t.changed, s)
	}
	return nil
}

// entry is a neighbour as the program has it; ok is false if nothing can be sent to it.
func (t *neighbourTable) entry(s station, d *device) (n guestNeighbour, ok bool) {
	mac, there := t.macs[s]
	if !there || d == nil || !d.up || !d.running {
		return n, false
	}
	p := d.ipv4
	if s.addr.Is6() {
		p = d.ipv6
	}
	return guestNeighbour{Mtu: uint32(p.mtu), Dest: mac, Source: d.mac}, p.on
}

func neighbourKey(s station) guestNeighbourKey {
	k := guestNeighbourKey{Ifindex: uint32(s.ifindex), Family: 4}
	if s.addr.Is6() {
		k.Family = 6
	}
	copy(k.Addr[:], s.addr.AsSlice())
	return k
}
