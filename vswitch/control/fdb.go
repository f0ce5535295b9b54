package control

import "github.com/tapswitch/tapswitch/vswitch"

// HostPort stands in FDBEntry.Port for the host's own stack.
const HostPort = "host"

// An FDBEntry is a forwarding entry of a bridge that the switch serves.
type FDBEntry struct {
	Bridge string       `json:"bridge"`
	VLAN   vswitch.VLAN `json:"vlan"` // 0: the bridge does not tell VLANs apart
	MAC    vswitch.MAC  `json:"mac"`
	// Port is the name of the port that frames for the address leave by, or
	// HostPort; Ifindex is its number, or vswitch.Host.
	Port    string         `json:"port"`
	Ifindex int            `json:"ifindex"`
	Origin  vswitch.Origin `json:"origin"`
	// Fast says that the datapath has the entry. Without it frames for the
	// address go by the bridge.
	Fast bool `json:"fast"`
	// KernelAge is for how many seconds the bridge has not refreshed the entry.
	KernelAge float64 `json:"kernel_age_s"`
	// SeenAge is for how many seconds the datapath has seen no frame from the
	// address; nil if it never has.
	SeenAge *float64 `json:"seen_age_s"`
}

// An FDBFilter chooses forwarding entries. A field that is not set lets all
// through.
type FDBFilter struct {
	Bridge string
	MAC    vswitch.MAC
	Port   string // a port's name or HostPort
}

// Match says whether the filter lets the entry through.
func (f FDBFilter) Match(e FDBEntry) bool {
	return (f.Bridge == "" || f.Bridge == e.Bridge) &&
		(f.MAC == vswitch.MAC{} || f.MAC == e.MAC) &&
		(f.Port == "" || f.Port == e.Port)
}
