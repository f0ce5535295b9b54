package libvirt

import (
	"cmp"
	"fmt"
	"slices"
)

// A Portless is a domain's NIC that is no port of a Linux bridge here, and why.
type Portless struct {
	Guest
	Why string
}

// FindPortless gives the NICs of domains that run which are none of the ports that
// Match has found, by the names of their domains.
func FindPortless(domains map[string]Reading, matched map[int]Guest) []Portless {
	ports := map[identity]bool{}
	for _, g := range matched {
		ports[g.identity()] = true
	}
	var portless []Portless
	for _, r := range domains {
		for _, n := range r.Interfaces {
			g := Guest{UUID: r.UUID, Domain: r.Name, Paused: r.Paused, Interface: n}
			if !ports[g.identity()] {
				portless = append(portless, Portless{g, cmp.Or(n.apart(), n.unplugged())})
			}
		}
	}
	slices.SortFunc(portless, func(a, b Portless) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Alias, b.Alias), cmp.Compare(a.MAC.String(), b.MAC.String()))
	})
	return portless
}

// unplugged says what is amiss with an interface whose tap should be a bridge's port
// and is not.
func (n Interface) unplugged() string {
	switch {
	case n.Type == "ethernet":
		return ethernetRemark
	case n.Bridge != "":
		return fmt.Sprintf("its tap %s is not a port of bridge %s: ip link set %[1]s master %[2]s", n.Target, n.Bridge)
	}
	return fmt.Sprintf("its tap %s is a port of no bridge", n.Target)
}

// ethernetRemark is what holds for interfaces that libvirt leaves to others.
const ethernetRemark = "libvirt puts the tap of <interface type='ethernet'> on no bridge; it is fast where something else does"
