package oracle

import (
	"encoding/binary"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"
)

// management is the VLAN in which marks travel on VLAN-aware bridges: all ports and
// the bridges themselves are in it with tags, and no change takes them out.
const management = 4000

// vlans are those that most changes and frames are about, so that ports have some in
// common.
var vlans = []uint16{1, 2, 10, 11, 100, management}

// wideFirst and wideLast bound the long ranges.
const wideFirst, wideLast = 1000, 1999

// A membership says which VLANs a port is in.
type membership struct {
	pvid uint16          // 0: none
	of   map[uint16]bool // whether their frames leave untagged
}

func (m membership) has(v uint16) bool {
	_, ok := m.of[v]
	return ok
}

func (m membership) equal(other membership) bool {
	return m.pvid == other.pvid && maps.Equal(m.of, other.of)
}

func (m membership) String() string { return fmt.Sprintf("PVID %d, untagged by VLAN %v", m.pvid, m.of) }

// bridging is how both bridges should treat VLANs.
type bridging struct {
	aware bool
	tpid  uint16 // of a VLAN-aware bridge's tags
	// ports have the memberships of the ports that are there, by number. They are read
	// from the plain host after each change.
	ports map[int]membership
}

// A vlanRange is a change of a port's VLANs.
type vlanRange struct {
	First    uint16 `json:"first"`
	Last     uint16 `json:"last"`
	PVID     bool   `json:"pvid,omitempty"`
	Untagged bool   `json:"untagged,omitempty"`
	Remove   bool   `json:"remove,omitempty"`
}

func (r vlanRange) String() string {
	what := "added"
	if r.Remove {
		what = "removed"
	}
	return fmt.Sprintf("VLAN %d to %d %s, PVID %t, untagged %t", r.First, r.Last, what, r.PVID, r.Untagged)
}

// classify gives the VLAN in which the bridges take a frame, 0 if they know of none;
// ok is false if they do not take it.
func (n *network) classify(port int, data []byte) (vid uint16, ok bool) {
	b := n.bridging
	if b == nil || !b.aware {
		return 0, true
	}
	m := b.ports[port]
	vid = m.pvid
	if len(data) >= ethLen+4 && binary.BigEndian.Uint16(data[12:]) == b.tpid {
		if v := binary.BigEndian.Uint16(data[14:]) & 0xfff; v != 0 {
			vid = v
		}
	}
	return vid, m.has(vid)
}

// key is where a bridge looks for an address of a VLAN.
func (n *network) key(m mac, vid uint16) fdbKey {
	if n.bridging == nil || !n.bridging.aware {
		vid = 0
	}
	return fdbKey{m, int(vid)}
}

// member gives a VLAN of a port, often one that others are in.
func (g *generator) member(port int) uint16 {
	m := g.network.bridging.ports[port]
	for range 20 {
		if v := one(g, vlans); m.has(v) {
			return v
		}
	}
	return management
}

// home gives the VLAN in which a station speaks.
func (g *generator) home(s *station) uint16 {
	if !g.network.bridging.ports[s.port].has(s.vlan) && g.chance(70) {
		s.vlan = g.member(s.port)
	}
	return s.vlan
}

// tag makes a frame of one in a VLAN, mostly its station's.
func (g *generator) tag(f *frame) {
	b := g.network.bridging
	if b == nil || len(f.data) < ethLen {
		return
	}
	vid := one(g, vlans)
	if s := g.speaker(func(s *station) bool { return s.port == f.port && s.mac == source(f.data) }); s != nil {
		vid = g.home(s)
	}
	tpid, tci := b.tpid, vid
	if g.chance(30) {
		tci |= uint16(g.Uint32()) & 0xf000 // priority, and that it may be dropped
	}
	switch {
	case g.chance(3):
		tpid = one(g, []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD, 0x9100, 0x9200})
	case g.chance(3):
		tci &= 0xf000
	case g.chance(3):
		tci = one(g, []uint16{0, 3, 1500, 4094, 4095, uint16(g.Uint32())})
	case (vid == b.ports[f.port].pvid || !b.aware) && g.chance(60):
		return
	}
	f.push(tpid, tci)
	if g.chance(4) {
		f.push(one(g, []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD}), g.member(f.port))
	}
}

// push puts a tag into a frame, and counts it in the virtio-net header.
func (f *frame) push(tpid, tci uint16) {
	f.data = tagged(f.data, tpid, tci)
	if f.header[offFlags]&needsCsum == 0 {
		return
	}
	order := binary.NativeEndian
	order.PutUint16(f.header[offStart:], order.Uint16(f.header[offStart:])+4)
	if f.header[offGSOType] != 0 {
		order.PutUint16(f.header[offHdrLen:], order.Uint16(f.header[offHdrLen:])+4)
	}
}
