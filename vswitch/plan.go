package vswitch

import (
	"fmt"
	"strings"
)

// An Observation is all that the plan is made from.
type Observation struct {
	Bridges map[int]Bridge // by ifindex
	Ports   map[int]Port   // by ifindex
	// Holds are reasons found elsewhere (foreign programs, policies), by the
	// ifindex of a port, or of a bridge for all its ports.
	Holds map[int][]HoldReason
	// Attached are the ports whose hooks the datapath has now. An uplink is not
	// detached when its last guest leaves, because some drivers take their link
	// down for a moment at each attach.
	Attached map[int]bool
	// XDP is which uplinks are to get native XDP.
	XDP XDPMode
}

// A PortConfig is what the datapath holds for one port. Two equal values mean
// that there is nothing to do.
type PortConfig struct {
	Ifindex int
	Bridge  int
	Role    Role
	// Attach says whether the port's tc hook is wanted, XDP whether its XDP hook is
	// as well. Without either, frames from the port never meet the datapath.
	Attach, XDP bool
	// Carrier says where XDP meets the port's frames; zero without XDP.
	Carrier Carrier
	// In and Out say whether frames may come in and leave by the fast path.
	In, Out bool
	// Queued says that frames may leave only through the port's qdisc: by tc.
	Queued bool
	// Isolated ports don't reach each other.
	Isolated bool
	// Unmerged says of a guest that its bulk TCP takes XDP too, because its tap takes
	// no merged segments; of an uplink, that its bridge has such a guest.
	Unmerged bool
	// Filter bounds the frames that may come in and leave.
	Filter Filter
	// VLANProtocol is the TPID of a VLAN-aware bridge; 0 on one that is not.
	VLANProtocol uint16
	// VLANs are the port's on a VLAN-aware bridge. On one that is not they are those
	// whose frames are not for the bridge. nil is none.
	VLANs *VLANSet
	// MaxFrame is the longest frame that may leave by the port, in bytes from
	// the destination address on, without a VLAN tag.
	MaxFrame int
}

// A PlannedPort is a port of the switch with what is wanted for it, and why not
// more.
type PlannedPort struct {
	Port
	Config PortConfig
	Held   []HoldReason
}

// A Plan says what the datapath should hold for each port, by ifindex.
type Plan struct {
	Bridges map[int]Bridge
	Ports   map[int]PlannedPort
}

const ethernetHeader = 14 // bytes

// The kinds of VLAN tags, as a frame's type.
const (
	tpidQ  = 0x8100 // 802.1Q
	tpidAD = 0x88a8 // 802.1ad
)

// NewPlan decides what the datapath should hold. It is a pure function of what
// was observed: the same observation always gives the same plan, however it
// came about. Bridges without a guest port are none of the switch's business.
func NewPlan(o *Observation) Plan {
	plan := Plan{Bridges: map[int]Bridge{}, Ports: map[int]PlannedPort{}}
	for _, p := range o.Ports {
		if br, ok := o.Bridges[p.Bridge]; ok && (p.Role == RoleGuest || o.Attached[p.Ifindex]) {
			plan.Bridges[br.Ifindex] = br
		}
	}
	for _, p := range o.Ports {
		br, ok := plan.Bridges[p.Bridge]
		if !ok {
			continue
		}
		held := portHolds(br, p)
		if why := o.XDP.without(p); p.Role == RoleUplink && why != "" {
			held = append(held, HoldReason{Code: HoldNoXDP, Text: why})
		}
		held = append(held, o.Holds[br.Ifindex]...)
		held = append(held, o.Holds[p.Ifindex]...)
		plan.Ports[p.Ifindex] = planPort(br, p, held)
	}
	plan.chooseMerging()
	return plan
}

// chooseMerging tells the uplinks of bridges with guests that take no merged TCP
// segments.
func (p Plan) chooseMerging() {
	unmerged := map[int]bool{}
	for _, port := range p.Ports {
		if port.Config.Unmerged {
			unmerged[port.Bridge] = true
		}
	}
	for ifindex, port := range p.Ports {
		if port.Role == RoleUplink {
			port.Config.Unmerged = unmerged[port.Bridge]
			p.Ports[ifindex] = port
		}
	}
}

// planPort gives the wanted configuration of a port that is held for the given
// reasons.
func planPort(br Bridge, p Port, held []HoldReason) PlannedPort {
	var closed Direction
	attach, xdp := p.Role != RoleOther, p.Role == RoleUplink || p.Promoted
	for _, h := range held {
		closed |= h.Direction
		switch h.Code {
		case HoldNoXDP, HoldHiddenTags:
			xdp = false
		case HoldForeign, HoldUnsupported, HoldFailed, HoldCapacity:
			attach = attach && h.Direction&In == 0
		}
	}
	planned := PlannedPort{
		Port: p,
		Held: held,
		Config: PortConfig{
			Ifindex:  p.Ifindex,
			Bridge:   p.Bridge,
			Role:     p.Role,
			Attach:   attach,
			XDP:      attach && xdp,
			In:       attach && closed&In == 0,
			Out:      closed&Out == 0,
			Queued:   closed&OutXDP != 0,
			Isolated: p.Flags.Isolated,
			Unmerged: p.Role == RoleGuest && p.NoTSO,
			Filter:   p.Filter,
			VLANs:    p.TakenVLANs,
			MaxFrame: p.MTU + ethernetHeader,
		},
	}
	if planned.Config.XDP {
		planned.Config.Carrier = p.Carrier
	}
	if br.VLANFiltering {
		planned.Config.VLANProtocol, planned.Config.VLANs = br.VLANProtocol, p.VLANs
	}
	return planned
}

// portHolds gives the reasons that lie in the port and its bridge themselves.
func portHolds(br Bridge, p Port) (held []HoldReason) {
	hold := func(code HoldCode, format string, args ...any) {
		held = append(held, Hold(code, format, args...))
	}
	if p.Role == RoleOther {
		hold(HoldRole, "a %s is neither a NIC nor a tap; name it under uplinks in the configuration if it is one", p.Kind)
	}
	if !br.Up {
		hold(HoldDown, "bridge %s is down", br.Name)
	}
	if !p.Up {
		hold(HoldDown, "the port is down or has no carrier")
	}
	if p.STP != STPForwarding {
		hold(HoldSTP, "spanning tree has the port %s", p.STP)
	}
	if br.VLANFiltering && br.VLANProtocol != tpidQ && br.VLANProtocol != tpidAD {
		hold(HoldVLAN, "bridge %s has VLANs of protocol %#x, which the fast path does not know", br.Name, br.VLANProtocol)
	}
	if br.VLANFiltering && p.TakenVLANs != nil {
		hold(HoldVLAN, "VLAN devices on %s take frames before bridge %s, which is VLAN-aware itself: put them on the bridge instead", p.Name, br.Name)
	}
	if len(p.Settings) > 0 {
		hold(HoldSettings, "bridge port flags that the fast path does not honour: %s", strings.Join(p.Settings, ", "))
	}
	return held
}

// refuse gives the planned port as it is once the datapath has refused it.
func (p Plan) refuse(ifindex int, err error) PlannedPort {
	planned := p.Ports[ifindex]
	reason := Hold(HoldFailed, "%v; tried again at the next change", err)
	if h, ok := asHeld(err); ok {
		reason = h.Reason
	}
	refused := planPort(p.Bridges[planned.Bridge], planned.Port, append(planned.Held[:len(planned.Held):len(planned.Held)], reason))
	refused.Config.Unmerged = planned.Config.Unmerged
	return refused
}

// State gives the port's state in a word: fast, held, or the one direction that
// is fast.
func (p PlannedPort) State() string {
	switch {
	case p.Config.In && p.Config.Out:
		return "fast"
	case p.Config.In:
		return "fast in"
	case p.Config.Out:
		return "fast out"
	}
	return "held"
}

func (p PlannedPort) String() string {
	return fmt.Sprintf("%s (ifindex %d): %s", p.Name, p.Ifindex, p.State())
}
