package hostbpf

import (
	"fmt"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A complete frame looks like one without its checksum once in 65,536, so a
// guest that sends complete frames alone stays far below one in partialShare; the
// first partialFew prove nothing.
const (
	partialFew   = 16
	partialShare = 4096
)

// partialFrames gives the reason to do without XDP on the tap of a promoted guest
// that has turned out to leave checksums to the host. What is inside a tunnel XDP
// can't tell, so such a guest must not keep it. The counters last as long as the
// port, and so does the reason.
func (d *Datapath) partialFrames(ifindex int) (*vswitch.HoldReason, error) {
	s, ok := d.held[ifindex]
	if !ok {
		return nil, nil
	}
	var cpus []hooksVerdictCounts
	if err := d.maps.Verdicts.Lookup(verdictIndex(s.slot, vswitch.HookXDP), &cpus); err != nil {
		return nil, fmt.Errorf("reading the verdicts of port %d: %w", ifindex, err)
	}
	counts := sumVerdicts(cpus)
	found := counts[vswitch.PassPartial]
	if found < partialFew || found < counts[vswitch.Redirected]/partialShare {
		return nil, nil
	}
	return &vswitch.HoldReason{Code: vswitch.HoldNoXDP, Text: "the guest is named under promote in the configuration, " +
		"but leaves checksums to the host, which XDP can't see; its frames go by tc. " +
		"Take it from there, or switch its offloads off and start it anew"}, nil
}
