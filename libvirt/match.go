package libvirt

import (
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A Guest is a domain's NIC behind a port of a bridge.
type Guest struct {
	UUID   string // of the domain
	Domain string // its name, for people
	Paused bool
	Interface
}

// A Sighting is a guest's port that a bridge has.
type Sighting struct {
	vswitch.Port
	Since time.Time // when it was first seen
}

// Match gives the guests behind ports, by the ports' ifindex. A guest is who it is by
// its domain's UUID, its own address and the port's ifindex: once matched, it keeps
// its port under any name, until the port or the guest goes. Names serve only to
// match the two for the first time, along with the tap's own address, which libvirt
// makes out of the guest's; and only if the domain was asked after the port was
// seen, because names and addresses come back.
func Match(domains map[string]Reading, ports map[int]Sighting, before map[int]Guest) map[int]Guest {
	m := matching{ports: ports, matched: map[int]Guest{}}
	for _, r := range domains {
		for _, n := range r.Interfaces {
			if n.Target != "" {
				m.open = append(m.open, candidate{Guest{UUID: r.UUID, Domain: r.Name, Paused: r.Paused, Interface: n}, r.Asked})
			}
		}
	}
	known := map[identity]int{}
	for ifindex, g := range before {
		known[g.identity()] = ifindex
	}
	m.pass(func(c candidate) int { return known[c.identity()] })

	names, taps := map[string]int{}, map[vswitch.MAC][]int{}
	for ifindex, p := range ports {
		names[p.Name] = ifindex
		if _, taken := m.matched[ifindex]; !taken {
			taps[p.MAC] = append(taps[p.MAC], ifindex)
		}
	}
	m.pass(func(c candidate) int {
		p := ports[names[c.Target]]
		// libvirt leaves the address of a tap alone that was made for it.
		if c.fresh(p) && (p.MAC == TapMAC(c.MAC) || c.Type == "ethernet") {
			return names[c.Target]
		}
		return 0
	})
	// Renamed while nobody looked: the address must do, if there is no doubt.
	guests := map[vswitch.MAC]int{}
	for _, c := range m.open {
		guests[c.MAC]++
	}
	m.pass(func(c candidate) int {
		if of := taps[TapMAC(c.MAC)]; len(of) == 1 && guests[c.MAC] == 1 && c.fresh(ports[of[0]]) {
			return of[0]
		}
		return 0
	})
	return m.matched
}

// An identity tells the NICs of all domains apart.
type identity struct {
	uuid, alias string
	mac         vswitch.MAC
}

func (g Guest) identity() identity { return identity{g.UUID, g.Alias, g.MAC} }

// A candidate is a guest without a port yet, as it was at asked or later.
type candidate struct {
	Guest
	asked time.Time
}

func (c candidate) fresh(p Sighting) bool { return !c.asked.Before(p.Since) }

type matching struct {
	ports   map[int]Sighting
	open    []candidate
	matched map[int]Guest
}

// pass matches the candidates with the ports that find gives, 0 for none.
func (m *matching) pass(find func(candidate) int) {
	var open []candidate
	for _, c := range m.open {
		ifindex := find(c)
		_, there := m.ports[ifindex]
		_, taken := m.matched[ifindex]
		if there && !taken {
			m.matched[ifindex] = c.Guest
		} else {
			open = append(open, c)
		}
	}
	m.open = open
}

// TapMAC gives the address that libvirt gives to a tap, so that the bridge takes
// another's as its own: the guest's, with a first byte of fe, or fa if it has fe.
func TapMAC(guest vswitch.MAC) vswitch.MAC {
	if guest[0] == 0xfe {
		guest[0] = 0xfa
	} else {
		guest[0] = 0xfe
	}
	return guest
}
