package hostbpf

import (
	"fmt"

	"github.com/safchain/ethtool"

	"github.com/tapswitch/tapswitch/vswitch"
)

// hiddenTags gives the reason to do without XDP on an uplink whose driver takes
// VLAN tags out of frames: to XDP such a frame looks untagged, and would reach a
// guest without its tag. tc sees the tag. A driver that doesn't tell has no such offload.
func hiddenTags(ifindex int) *vswitch.HoldReason {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil
	}
	defer e.Close()
	name := deviceName(ifindex)
	features, err := e.Features(name)
	if err != nil || !features["rx-vlan-hw-parse"] && !features["rx-vlan-stag-hw-parse"] {
		return nil
	}
	return &vswitch.HoldReason{Code: vswitch.HoldHiddenTags, Text: fmt.Sprintf(
		"the NIC takes VLAN tags out of frames before XDP sees them, so its frames go by tc; for XDP switch that off with 'ethtool -K %s rxvlan off'%s",
		name, stagHint(features, name))}
}

func stagHint(features map[string]bool, name string) string {
	if !features["rx-vlan-stag-hw-parse"] {
		return ""
	}
	return fmt.Sprintf(" and 'ethtool -K %s rx-vlan-stag-hw-parse off'", name)
}
