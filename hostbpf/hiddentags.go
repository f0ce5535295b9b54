package hostbpf

import (
	"fmt"
	"slices"

	"github.com/safchain/ethtool"

	"github.com/tapswitch/tapswitch/vswitch"
)

// hiddenTags gives the reason to do without XDP on an uplink where a driver takes
// VLAN tags out of frames: to XDP such a frame looks untagged, and would reach a
// guest without its tag. tc sees the tag. A driver that doesn't tell has no such offload.
// It is switched off first where that is allowed.
func (d *Datapath) hiddenTags(ifindex int, p vswitch.Port) *vswitch.HoldReason {
	devices := slices.DeleteFunc(p.Carrier.Members[:], func(member int) bool { return member == 0 })
	if p.Carrier.Ifindex == 0 && p.Kind != "bond" { // what a bond says of itself means nothing
		devices = []int{ifindex}
	}
	for _, device := range devices {
		if r := d.hidesTags(device); r != nil {
			return r
		}
	}
	return nil
}

func (d *Datapath) hidesTags(ifindex int) *vswitch.HoldReason {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil
	}
	defer e.Close()
	name := deviceName(ifindex)
	features, err := e.Features(name)
	if d.blind[ifindex] {
		return blindTo(name)
	}
	if err != nil || len(hiding(features)) == 0 {
		return nil
	}
	if d.untag.Allows(name) {
		if err := d.showTags(e, ifindex, name, hiding(features)); err != nil {
			return &vswitch.HoldReason{Code: vswitch.HoldHiddenTags, Text: fmt.Sprintf(
				"the NIC %s takes VLAN tags out of frames before XDP sees them, and that can't be switched off (%v); its frames go by tc", name, err)}
		}
		return nil
	}
	return &vswitch.HoldReason{Code: vswitch.HoldHiddenTags, Text: fmt.Sprintf(
		"the NIC %s takes VLAN tags out of frames before XDP sees them, so its frames go by tc; for XDP switch that off with 'ethtool -K %[1]s rxvlan off'%s, or name it under rxvlan_off in the configuration",
		name, stagHint(features, name))}
}

func stagHint(features map[string]bool, name string) string {
	if !features["rx-vlan-stag-hw-parse"] {
		return ""
	}
	return fmt.Sprintf(" and 'ethtool -K %s rx-vlan-stag-hw-parse off'", name)
}
