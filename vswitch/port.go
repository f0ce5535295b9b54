package vswitch

import "time"

// A Role says which side of the switch a port is on.
type Role uint8

// The roles.
const (
	RoleOther  Role = iota // neither: stays on the slow path
	RoleUplink             // NIC, bond, or VLAN device over one
	RoleGuest              // tap of a virtual machine
)

var roleNames = []string{"other", "uplink", "guest"}

func (r Role) String() string                { return enumName(roleNames, r) }
func (r Role) MarshalText() ([]byte, error)  { return []byte(r.String()), nil }
func (r *Role) UnmarshalText(b []byte) error { return enumParse(roleNames, b, r) }

// An STPState is a port's spanning tree state, numbered as the kernel's
// BR_STATE_ constants. A bridge without STP keeps its ports at STPForwarding.
type STPState uint8

// The states.
const (
	STPDisabled STPState = iota
	STPListening
	STPLearning
	STPForwarding
	STPBlocking
)

var stpNames = []string{"disabled", "listening", "learning", "forwarding", "blocking"}

func (s STPState) String() string                { return enumName(stpNames, s) }
func (s STPState) MarshalText() ([]byte, error)  { return []byte(s.String()), nil }
func (s *STPState) UnmarshalText(b []byte) error { return enumParse(stpNames, b, s) }

// A Port is a device enslaved to a bridge, as observed.
type Port struct {
	Ifindex int
	Name    string // for people; names come back with other devices, so never a key
	Bridge  int    // ifindex of the bridge
	Role    Role
	Kind    string // the kernel's link kind ("tun", "veth", …); "device" for hardware
	MAC     MAC
	MTU     int  // bytes, without the Ethernet header
	Up      bool // administratively up and with carrier
	STP     STPState
	// NoTSO says of a guest's tap that it takes no merged TCP segments: the kernel
	// would cut them up again before it.
	NoTSO bool
	// VLANs are the port's, if the kernel tells them; they count on a VLAN-aware bridge.
	VLANs *VLANSet
	// TakenVLANs are those of VLAN devices on top of the port, which get the frames
	// before the bridge can; nil for none.
	TakenVLANs *VLANSet
	// Carrier says where XDP meets an uplink's frames.
	Carrier Carrier
	// VethMTU is the largest MTU of the veths that it meets them at; 0: there are none.
	VethMTU int
	// Promoted says that the port's guest is known to send complete frames alone:
	// with their checksums, and no longer than the MTU. It gets native XDP.
	Promoted bool
	// Filter is what a filter of the port's lets through that is understood.
	Filter Filter
	Flags  PortFlags
	// Settings lists the bridge port flags that the fast path does not honour and
	// that are not at the kernel's default, as name=value, and flags that this
	// version does not know.
	Settings []string
}

// PortFlags are the flags of a bridge port that the fast path honours.
type PortFlags struct {
	Isolated bool // reaches no other isolated port
	// Locked says that frames come in only from addresses that are known on the
	// port. MAB does not change that.
	Locked bool
}

// A Bridge is a Linux bridge device, as observed.
type Bridge struct {
	Ifindex       int
	Name          string
	MAC           MAC
	Up            bool
	VLANFiltering bool
	VLANProtocol  uint16        // TPID of a VLAN-aware bridge's tags, 0x8100 or 0x88a8
	Ageing        time.Duration // how long a silent learned address is kept
}
