package hostbpf

import (
	"fmt"

	"github.com/tapswitch/tapswitch/vswitch"
)

// blindAfter is how many frames of a VLAN must have come to tc, and none to XDP, for the
// NIC to be one that hides tags whatever its driver says.
const blindAfter = 100

// metFrames are those of a VLAN port that the hooks have met.
type metFrames struct{ tc, xdp uint64 }

// probeTags looks at real frames. All frames of a VLAN device have come with its tag,
// and XDP below has met each before tc: if it has not, it can't see tags. That does
// not hold for a bond, some of whose devices' frames are not looked up.
func (d *Datapath) probeTags(ifindex int, p vswitch.Port) error {
	nic, s := p.Carrier.Ifindex, d.held[ifindex]
	if p.Carrier.TPID == 0 || p.Carrier.Members != [vswitch.CarrierMembers]int{nic} ||
		s == nil || s.hooks[vswitch.HookXDP] == nil || s.hooks[vswitch.HookTC] == nil {
		delete(d.met, ifindex)
		return nil
	}
	var counts [vswitch.NumHooks]uint64
	for _, at := range vswitch.Hooks() { // tc first: what comes meanwhile is XDP's
		var cpus []hooksVerdictCounts
		if err := d.maps.Verdicts.Lookup(verdictIndex(s.slot, at), &cpus); err != nil {
			return fmt.Errorf("reading the verdicts of port %d: %w", ifindex, err)
		}
		for _, n := range sumVerdicts(cpus) {
			counts[at] += n
		}
	}
	now := metFrames{counts[vswitch.HookTC], counts[vswitch.HookXDP]}
	before, known := d.met[ifindex]
	switch {
	case !known || now.xdp != before.xdp || now.tc < before.tc:
		d.met[ifindex] = now
	case now.tc-before.tc >= blindAfter:
		d.blind[nic] = true
	}
	return nil
}

// blindTo words the reason to do without XDP on a NIC that hides tags unasked.
func blindTo(name string) *vswitch.HoldReason {
	return &vswitch.HoldReason{Code: vswitch.HoldHiddenTags, Text: fmt.Sprintf(
		"the NIC %s takes VLAN tags out of frames before XDP sees them, although its driver says that it does not; its frames go by tc until tapswitchd is restarted", name)}
}
