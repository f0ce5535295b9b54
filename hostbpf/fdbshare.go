package hostbpf

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/tapswitch/tapswitch/vswitch"
)

// shares tell how the forwarding table is shared out when it is full: half of it
// belongs to the uplinks, behind which the whole world is, in equal parts, and half
// to the other ports. A port may have more while there is room. When there is
// none, the port that has most, measured by its share, gives way to those that have
// less: a guest that floods addresses gives up its own.
type shares struct {
	entries [portSlots]int // by slot
	uplink  [portSlots]bool
	uplinks int // ports of each kind
	others  int
	// greedy is the slot with the most entries for its share, once it has been
	// looked for.
	greedy uint32
	known  bool
}

// add counts entries of a slot; the host's are nobody's.
func (s *shares) add(slot uint32, n int) {
	if slot < portSlots {
		s.entries[slot] += n
		s.known = false
	}
}

// setPorts tells which slots are in use.
func (s *shares) setPorts(slots []hooksPort) {
	s.uplinks, s.others, s.known = 0, 0, false
	for i := range slots {
		s.uplink[i] = vswitch.Role(slots[i].Role) == vswitch.RoleUplink
		switch {
		case slots[i].Ifindex == 0:
		case s.uplink[i]:
			s.uplinks++
		default:
			s.others++
		}
	}
}

// share gives a slot's.
func (s *shares) share(slot uint32) int {
	ports := s.others
	if s.uplink[slot] {
		ports = s.uplinks
	}
	return FDBCapacity / 2 / max(ports, 1)
}

// greedier says whether a with n entries has more for its share than b with m.
func (s *shares) greedier(a uint32, n int, b uint32, m int) bool {
	return n*s.share(b) > m*s.share(a)
}

// greediest gives the slot with the most entries for its share.
func (s *shares) greediest() uint32 {
	if !s.known {
		s.greedy, s.known = 0, true
		for slot := uint32(1); slot < portSlots; slot++ {
			if s.greedier(slot, s.entries[slot], s.greedy, s.entries[s.greedy]) {
				s.greedy = slot
			}
		}
	}
	return s.greedy
}

// makeRoom removes an entry of the port that has most, unless a port that wants
// one more would then have more itself.
func (t *fdbTable) makeRoom(slot uint32) bool {
	s := &t.shares
	from := s.greediest()
	if s.entries[from] == 0 || slot != fdbHost && !s.greedier(from, s.entries[from], slot, s.entries[slot]+1) {
		return false
	}
	k, ok := t.leastUsed(from)
	if ok {
		t.remove(k)
	}
	return ok
}

// leastUsed gives the entry of a slot that has been silent for longest, out of a
// few that are found first from a place by chance on. Learned ones come first.
func (t *fdbTable) leastUsed(slot uint32) (least fdbIndexKey, ok bool) {
	const few = 8
	var (
		begin     = rand.IntN(len(t.buckets))
		found     = 0
		leastSeen uint32
		isFixed   bool
	)
	for i := range t.buckets {
		bucket := (begin + i) % len(t.buckets)
		for w := range t.buckets[bucket].Way {
			e := &t.buckets[bucket].Way[w]
			if e.Key == 0 || e.Dest&0xffff != slot {
				continue
			}
			k := fdbIndexKey{e.Key, uint16(e.Dest >> 16)}
			seen, fixed := atomic.LoadUint32(&e.Seen), t.fixed[bucket*fdbWays+w]
			longer := leastSeen != 0 && (seen == 0 || int32(seen-leastSeen) < 0)
			if !ok || isFixed && !fixed || isFixed == fixed && longer {
				least, leastSeen, isFixed, ok = k, seen, fixed, true
			}
			if !fixed {
				found++
			}
		}
		if found >= few {
			break
		}
	}
	return least, ok
}
