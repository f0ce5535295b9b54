package bridge

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// brportNeighForwardGrat is newer than package unix (after Linux 6.18).
const brportNeighForwardGrat = 45

// A settingKind says what a bridge port attribute means to the fast path.
type settingKind uint8

const (
	settingUnknown settingKind = iota // from a newer kernel: it may mean anything
	settingIgnored                    // can't change where a known unicast frame goes, or is honoured
	settingFlag                       // holds the port back unless it is 0
	settingNumber                     // the same, shown as a number
)

// settings says for each bridge port attribute (IFLA_BRPORT_*) whether it can
// change by which single port a known unicast frame leaves, whether it may
// enter, or what else the bridge does with it. The kernel's default of all that
// matter is 0 or absence.
var settings = [...]struct {
	name string
	kind settingKind
}{
	// State, identities and timers of the spanning tree protocol; what follows
	// from them is in the port's STP state.
	unix.IFLA_BRPORT_STATE:               {"state", settingIgnored},
	unix.IFLA_BRPORT_PRIORITY:            {"priority", settingIgnored},
	unix.IFLA_BRPORT_COST:                {"cost", settingIgnored},
	unix.IFLA_BRPORT_ROOT_ID:             {"root_id", settingIgnored},
	unix.IFLA_BRPORT_BRIDGE_ID:           {"bridge_id", settingIgnored},
	unix.IFLA_BRPORT_DESIGNATED_PORT:     {"designated_port", settingIgnored},
	unix.IFLA_BRPORT_DESIGNATED_COST:     {"designated_cost", settingIgnored},
	unix.IFLA_BRPORT_ID:                  {"id", settingIgnored},
	unix.IFLA_BRPORT_NO:                  {"no", settingIgnored},
	unix.IFLA_BRPORT_TOPOLOGY_CHANGE_ACK: {"topology_change_ack", settingIgnored},
	unix.IFLA_BRPORT_CONFIG_PENDING:      {"config_pending", settingIgnored},
	unix.IFLA_BRPORT_MESSAGE_AGE_TIMER:   {"message_age_timer", settingIgnored},
	unix.IFLA_BRPORT_FORWARD_DELAY_TIMER: {"forward_delay_timer", settingIgnored},
	unix.IFLA_BRPORT_HOLD_TIMER:          {"hold_timer", settingIgnored},
	unix.IFLA_BRPORT_FLUSH:               {"flush", settingIgnored},
	unix.IFLA_BRPORT_PAD:                 {"pad", settingIgnored},
	// MRP blocks ports by their state; these two only tell of its rings.
	unix.IFLA_BRPORT_MRP_RING_OPEN: {"mrp_ring_open", settingIgnored},
	unix.IFLA_BRPORT_MRP_IN_OPEN:   {"mrp_in_open", settingIgnored},
	// Both look at BPDUs alone, which are multicast.
	unix.IFLA_BRPORT_GUARD:   {"guard", settingIgnored},
	unix.IFLA_BRPORT_PROTECT: {"root_block", settingIgnored},

	// They choose who gets group frames and frames for unknown addresses, which
	// never take the fast path.
	unix.IFLA_BRPORT_UNICAST_FLOOD:         {"flood", settingIgnored},
	unix.IFLA_BRPORT_MCAST_FLOOD:           {"mcast_flood", settingIgnored},
	unix.IFLA_BRPORT_BCAST_FLOOD:           {"bcast_flood", settingIgnored},
	unix.IFLA_BRPORT_MCAST_TO_UCAST:        {"mcast_to_unicast", settingIgnored},
	unix.IFLA_BRPORT_FAST_LEAVE:            {"fastleave", settingIgnored},
	unix.IFLA_BRPORT_MULTICAST_ROUTER:      {"mcast_router", settingIgnored},
	unix.IFLA_BRPORT_MCAST_EHT_HOSTS_LIMIT: {"mcast_eht_hosts_limit", settingIgnored},
	unix.IFLA_BRPORT_MCAST_EHT_HOSTS_CNT:   {"mcast_eht_hosts_cnt", settingIgnored},
	unix.IFLA_BRPORT_MCAST_N_GROUPS:        {"mcast_n_groups", settingIgnored},
	unix.IFLA_BRPORT_MCAST_MAX_GROUPS:      {"mcast_max_groups", settingIgnored},
	unix.IFLA_BRPORT_GROUP_FWD_MASK:        {"group_fwd_mask", settingIgnored},

	// Hairpin lets a frame leave by the port it came from; the fast path gives
	// such frames to the bridge.
	unix.IFLA_BRPORT_MODE: {"hairpin", settingIgnored},
	// Without learning the bridge still forwards by the entries it has, and so
	// does the fast path: a frame whose source has no entry on its port goes to
	// the bridge, which then does not learn it. Refresh leaves such ports out.
	unix.IFLA_BRPORT_LEARNING: {"learning", settingIgnored},
	// Concerns a device with a table of its own (switchdev).
	unix.IFLA_BRPORT_LEARNING_SYNC: {"learning_sync", settingIgnored},
	// Only refines neigh_suppress, and only for broadcasts.
	brportNeighForwardGrat: {"neigh_forward_grat", settingIgnored},

	// The fast path honours these; see vswitch.PortFlags.
	unix.IFLA_BRPORT_ISOLATED: {"isolated", settingIgnored},
	unix.IFLA_BRPORT_LOCKED:   {"locked", settingIgnored},
	unix.IFLA_BRPORT_MAB:      {"mab", settingIgnored},
	// The bridge answers ARP and neighbour solicitations for stations, also
	// where they are sent by unicast.
	unix.IFLA_BRPORT_PROXYARP:            {"proxy_arp", settingFlag},
	unix.IFLA_BRPORT_PROXYARP_WIFI:       {"proxy_arp_wifi", settingFlag},
	unix.IFLA_BRPORT_NEIGH_SUPPRESS:      {"neigh_suppress", settingFlag},
	unix.IFLA_BRPORT_NEIGH_VLAN_SUPPRESS: {"neigh_vlan_suppress", settingFlag},
	// The bridge maps VLANs to tunnels in the frame's metadata.
	unix.IFLA_BRPORT_VLAN_TUNNEL: {"vlan_tunnel", settingFlag},
	// Frames leave by another port from the moment that this one loses its
	// carrier, before anybody can be told.
	unix.IFLA_BRPORT_BACKUP_PORT: {"backup_port", settingNumber},
	unix.IFLA_BRPORT_BACKUP_NHID: {"backup_nhid", settingNumber},
}

// appendSetting adds the decoder's attribute to list, as name=value, if it holds
// the port back.
func appendSetting(list []string, ad *netlink.AttributeDecoder) []string {
	var (
		attr    = int(ad.Type())
		setting = settings[unix.IFLA_BRPORT_UNSPEC]
	)
	if attr < len(settings) {
		setting = settings[attr]
	}
	switch setting.kind {
	case settingUnknown:
		if attr != unix.IFLA_BRPORT_UNSPEC {
			return append(list, fmt.Sprintf("unknown(%d)", attr))
		}
	case settingFlag:
		if ad.Uint8() != 0 {
			return append(list, setting.name+"=on")
		}
	case settingNumber:
		if n := ad.Uint32(); n != 0 {
			return append(list, fmt.Sprintf("%s=%d", setting.name, n))
		}
	}
	return list
}
