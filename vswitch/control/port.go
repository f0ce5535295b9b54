package control

import "github.com/tapswitch/tapswitch/vswitch"

// The states of a port, as vswitch.PlannedPort.State gives them.
const (
	StateFast    = "fast"     // in both directions
	StateFastIn  = "fast in"  // frames that leave by the port go by the bridge
	StateFastOut = "fast out" // frames that come in by the port go by the bridge
	StateHeld    = "held"     // all frames go by the bridge
)

// A Port is a port of a bridge that the switch serves.
type Port struct {
	Name          string       `json:"name"`
	Ifindex       int          `json:"ifindex"`
	Bridge        string       `json:"bridge"`
	BridgeIfindex int          `json:"bridge_ifindex"`
	Role          vswitch.Role `json:"role"`
	Kind          string       `json:"kind"` // the kernel's link kind; "device" for hardware
	MAC           vswitch.MAC  `json:"mac"`
	MTU           int          `json:"mtu"` // bytes, without the Ethernet header
	State         string       `json:"state"`
	// Held are the reasons why the port is not fast in both directions.
	Held []vswitch.HoldReason `json:"held"`
	// Hook is where the datapath meets the port's frames: "xdp native + tcx", "tcx",
	// the same with "clsact", or empty if it does not.
	Hook string `json:"hook"`
	// FDBRefused counts how often the port had a new address beyond its limit
	// (fdb_per_port in the configuration), whose frames go by the bridge.
	FDBRefused uint64 `json:"fdb_refused"`
	// Guest is whose port it is; nil if libvirt does not tell.
	Guest *Guest `json:"guest"`
}
