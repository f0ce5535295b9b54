package vswitch

import (
	"fmt"
	"time"
)

// A Direction is a way through a port, seen from the switch.
type Direction uint8

// The directions.
const (
	In   Direction = 1 << iota // frames that come in by the port
	Out                        // frames that leave by the port
	Both           = In | Out
	// OutXDP is the part of Out that goes past the port's qdisc. It holds nothing
	// else: the frames go by tc.
	OutXDP Direction = 1 << 2
)

var directionNames = []string{"none", "in", "out", "both", "out_xdp"}

func (d Direction) String() string                { return enumName(directionNames, d) }
func (d Direction) MarshalText() ([]byte, error)  { return []byte(d.String()), nil }
func (d *Direction) UnmarshalText(b []byte) error { return enumParse(directionNames, b, d) }

// A HoldCode names a kind of reason, for programs and metrics.
type HoldCode string

// The kinds of reasons. A new policy adds its own here.
const (
	HoldRole        HoldCode = "role"        // neither an uplink nor a guest's tap
	HoldDown        HoldCode = "down"        // port or bridge down, or no carrier
	HoldSTP         HoldCode = "stp"         // spanning tree does not let it forward
	HoldSettings    HoldCode = "settings"    // a bridge port flag that the fast path does not honour
	HoldVLAN        HoldCode = "vlan"        // VLAN-aware bridge
	HoldHiddenTags  HoldCode = "hidden_tags" // the NIC takes VLAN tags out of frames before XDP sees them
	HoldForeign     HoldCode = "foreign"     // somebody else's program is on the device
	HoldUnsupported HoldCode = "unsupported" // driver or kernel can't do it
	HoldNoXDP       HoldCode = "no_xdp"      // no native XDP on the device: tc alone; no direction is held
	HoldNftables    HoldCode = "nftables"    // nftables decides over the frames
	HoldIptables    HoldCode = "iptables"    // iptables, ip6tables or arptables do, by br_netfilter
	HoldEbtables    HoldCode = "ebtables"    // ebtables does
	HoldQdisc       HoldCode = "qdisc"       // a qdisc limits or drops frames to the port, which XDP goes past
	HoldFilter      HoldCode = "filter"      // libvirt's filter guards the guest's interface
	HoldInterface   HoldCode = "interface"   // a domain's interface that is no tap on a Linux bridge
	HoldUnread      HoldCode = "unread"      // what decides over frames can't be read
	HoldPaused      HoldCode = "paused"      // a person sends the frames by the bridge for a while
	HoldFlooding    HoldCode = "flooding"    // more addresses behind it than the fast path takes; no direction is held
	HoldFailed      HoldCode = "failed"      // putting the port into the datapath failed
	HoldCapacity    HoldCode = "capacity"    // the datapath's port table is full
)

// A HoldReason says why a port stays on the slow path in a direction, and what
// a person can do. With no direction it is a remark: the port is fast, but not
// in the way that it could be.
type HoldReason struct {
	Code      HoldCode  `json:"code"`
	Direction Direction `json:"direction"`
	Text      string    `json:"text"`
	// Until is when the reason ends by itself; zero if it does not.
	Until time.Time `json:"until,omitzero"`
}

// Hold makes a reason for both directions.
func Hold(code HoldCode, format string, args ...any) HoldReason {
	return HoldReason{Code: code, Direction: Both, Text: fmt.Sprintf(format, args...)}
}

// A HeldError is how a Datapath refuses a port for a reason that a person can
// act on. The port is then held back for that reason; any other error holds it
// back as HoldFailed.
type HeldError struct{ Reason HoldReason }

func (e *HeldError) Error() string { return e.Reason.Text }
