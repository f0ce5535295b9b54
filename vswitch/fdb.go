package vswitch

import "time"

// An FDBKey names one forwarding entry: where a bridge sends frames for a MAC
// in a VLAN. Bridge is the bridge's ifindex.
type FDBKey struct {
	Bridge int  `json:"bridge"`
	VLAN   VLAN `json:"vlan"`
	MAC    MAC  `json:"mac"`
}

// An Origin says how the kernel's bridge came to know an entry.
type Origin uint8

// The origins, in the kernel's terms.
const (
	OriginLearned Origin = iota // from a frame's source; ages out
	OriginStatic                // by a person or a program; does not age
	OriginLocal                 // the host's own address: frames for it go up the host's stack
	OriginExtern                // by a controller or a NIC (extern_learn)
)

var originNames = []string{"learned", "static", "local", "extern"}

func (o Origin) String() string                { return enumName(originNames, o) }
func (o Origin) MarshalText() ([]byte, error)  { return []byte(o.String()), nil }
func (o *Origin) UnmarshalText(b []byte) error { return enumParse(originNames, b, o) }

// An FDBEntry is one forwarding entry as the kernel's bridge has it.
type FDBEntry struct {
	FDBKey
	// Port is the ifindex of the port; the bridge's own for its own address.
	Port   int    `json:"port"`
	Origin Origin `json:"origin"`
	// Updated is when the kernel last learned or refreshed the entry.
	Updated time.Time `json:"updated"`
}

// Host is the destination of entries whose frames belong to the host's own
// stack. No device has this ifindex.
const Host = -1

// Destination gives the ifindex of the port that frames for the entry leave
// by, or Host.
func (e FDBEntry) Destination() int {
	if e.Origin == OriginLocal {
		return Host
	}
	return e.Port
}
