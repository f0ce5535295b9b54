package oracle

// A network is what both hosts should look like, as far as it can be told from what
// was done to them.
type network struct {
	ports []portState
	// learned is where the bridges have an address, as far as it can be told from
	// what was sent. It may name more than they have, never less.
	learned  map[fdbKey]int
	bridging *bridging // nil: the bridges are not and become not VLAN-aware
	// mtus are what the ports are made with.
	mtus []int
	// moved are the addresses for which the datapath may forward by an old entry, and
	// unseen those that the bridges may not have learned yet, from the wire.
	moved, unseen map[mac]bool
}

// A portState is how a port is set.
type portState struct {
	there, up bool
	mtu       int
	set       [settings]bool
}

func newNetwork(uplinkMTU int) *network {
	n := &network{learned: map[fdbKey]int{}, moved: map[mac]bool{}, unseen: map[mac]bool{}}
	for i := range specs {
		n.mtus = append(n.mtus, specs[i].mtu)
	}
	n.mtus[uplink] = uplinkMTU
	for i := range specs {
		n.ports = append(n.ports, n.newPort(i))
	}
	return n
}

// newPort is a port as it is made.
func (n *network) newPort(number int) portState {
	s := portState{there: true, up: true, mtu: n.mtus[number]}
	for f := range settings {
		s.set[f] = f.byDefault()
	}
	return s
}

// reach says whether frames can go from a port to another.
func (n *network) reach(from, to int) bool {
	f, t := &n.ports[from], &n.ports[to]
	return f.up && t.up && (from == to || !(f.set[isolated] && t.set[isolated]))
}

// fast says that the fast path must not hold the port back.
func (s *portState) fast() bool { return s.up }

// teaches says what a frame does to the bridges' tables: changes, that they may
// learn its source by it, and moves, that they had it elsewhere before.
func (n *network) teaches(f *frame) (changes, moves bool) {
	if len(f.data) < ethLen {
		return false, false
	}
	s := source(f.data)
	vid, ok := n.classify(f.port, f.data)
	if !ok || s.group() || s == (mac{}) || n.own(s) || !n.ports[f.port].set[learning] {
		return false, false
	}
	before, known := n.learned[fdbKey{s, int(vid)}]
	changes = !known || before != f.port
	return changes, changes && known
}

// learn notes where the source of a frame is.
func (n *network) learn(f *frame) (changes, moves bool) {
	if changes, moves = n.teaches(f); changes {
		vid, _ := n.classify(f.port, f.data)
		n.learned[fdbKey{source(f.data), int(vid)}] = f.port
	}
	return changes, moves
}

// own says whether an address is the host's, in all VLANs.
func (n *network) own(m mac) bool {
	if n.bridging != nil && n.bridging.aware {
		return false // only in those of its port
	}
	for i := range n.ports {
		if n.ports[i].there && m == portMAC(i) {
			return true
		}
	}
	return false
}

// forget notes that a port's addresses are gone with it.
func (n *network) forget(port int) {
	for m, at := range n.learned {
		if at == port {
			delete(n.learned, m)
		}
	}
}

// touches says whether a frame is from or to one of some addresses.
func touches(f *frame, some map[mac]bool) bool {
	return len(some) > 0 && len(f.data) >= ethLen && (some[source(f.data)] || some[destination(f.data)])
}
