package bridge

import "github.com/tapswitch/tapswitch/vswitch"

// Refused gives how often a port's entries were beyond its bound, by ifindex.
func (m *Mirror) Refused() map[int]uint64 {
	g := m.gate
	counts := map[int]uint64{}
	g.mu.Lock()
	defer g.mu.Unlock()
	for port, n := range g.refused {
		counts[port] = n
	}
	for port := range g.shut {
		counts[port] += g.sieve.Dropped(port)
	}
	return counts
}

// Flooding gives a remark for each port that has more learned addresses than the
// mirror takes, by ifindex. The map is the caller's.
func (m *Mirror) Flooding() map[int][]vswitch.HoldReason {
	g := m.gate
	remarks := map[int][]vswitch.HoldReason{}
	crowded := g.crowded()
	g.mu.Lock()
	defer g.mu.Unlock()
	for index, more := range crowded {
		if more {
			g.full[index] = true
		}
	}
	for index := range g.full {
		if p, ok := m.Ports[index]; ok {
			remarks[index] = []vswitch.HoldReason{flooding(p, g.bound(p.Role == vswitch.RoleUplink))}
		}
	}
	return remarks
}

func flooding(p vswitch.Port, bound int) vswitch.HoldReason {
	r := vswitch.Hold(vswitch.HoldFlooding,
		"more than %d addresses are behind the port; frames from and for the others go by the bridge", bound)
	r.Direction = 0
	if p.Role != vswitch.RoleUplink {
		r.Text += "; fdb_per_port in the configuration is the limit"
	}
	return r
}

// crowded gives the ports without room, and whether they have more than the mirror
// takes.
func (g *gate) crowded() map[int]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	ports := map[int]bool{}
	for port, was := range g.shut {
		ports[port] = g.full[port] || g.sieve.Dropped(port) > was
	}
	return ports
}
