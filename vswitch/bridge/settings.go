package bridge

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
)

// Bridge port attributes that package nl does not have yet.
const (
	brportNeighVLANSuppress = 43 // Linux 6.4
	brportBackupNHID        = 44 // Linux 6.6
	brportNeighForwardGrat  = 45 // after Linux 6.18
)

// A settingKind says what a bridge port attribute means to the fast path.
type settingKind uint8

const (
	settingUnknown settingKind = iota // from a newer kernel: it may mean anything
	settingIgnored                    // can't change where a known unicast frame goes
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
	nl.IFLA_BRPORT_STATE:               {"state", settingIgnored},
	nl.IFLA_BRPORT_PRIORITY:            {"priority", settingIgnored},
	nl.IFLA_BRPORT_COST:                {"cost", settingIgnored},
	nl.IFLA_BRPORT_ROOT_ID:             {"root_id", settingIgnored},
	nl.IFLA_BRPORT_BRIDGE_ID:           {"bridge_id", settingIgnored},
	nl.IFLA_BRPORT_DESIGNATED_PORT:     {"designated_port", settingIgnored},
	nl.IFLA_BRPORT_DESIGNATED_COST:     {"designated_cost", settingIgnored},
	nl.IFLA_BRPORT_ID:                  {"id", settingIgnored},
	nl.IFLA_BRPORT_NO:                  {"no", settingIgnored},
	nl.IFLA_BRPORT_TOPOLOGY_CHANGE_ACK: {"topology_change_ack", settingIgnored},
	nl.IFLA_BRPORT_CONFIG_PENDING:      {"config_pending", settingIgnored},
	nl.IFLA_BRPORT_MESSAGE_AGE_TIMER:   {"message_age_timer", settingIgnored},
	nl.IFLA_BRPORT_FORWARD_DELAY_TIMER: {"forward_delay_timer", settingIgnored},
	nl.IFLA_BRPORT_HOLD_TIMER:          {"hold_timer", settingIgnored},
	nl.IFLA_BRPORT_FLUSH:               {"flush", settingIgnored},
	nl.IFLA_BRPORT_PAD:                 {"pad", settingIgnored},
	// MRP blocks ports by their state; these two only tell of its rings.
	nl.IFLA_BRPORT_MRP_RING_OPEN: {"mrp_ring_open", settingIgnored},
	nl.IFLA_BRPORT_MRP_IN_OPEN:   {"mrp_in_open", settingIgnored},
	// Both look at BPDUs alone, which are multicast.
	nl.IFLA_BRPORT_GUARD:   {"guard", settingIgnored},
	nl.IFLA_BRPORT_PROTECT: {"root_block", settingIgnored},

	// They choose who gets group frames and frames for unknown addresses, which
	// never take the fast path.
	nl.IFLA_BRPORT_UNICAST_FLOOD:         {"flood", settingIgnored},
	nl.IFLA_BRPORT_MCAST_FLOOD:           {"mcast_flood", settingIgnored},
	nl.IFLA_BRPORT_BCAST_FLOOD:           {"bcast_flood", settingIgnored},
	nl.IFLA_BRPORT_MCAST_TO_UCAST:        {"mcast_to_unicast", settingIgnored},
	nl.IFLA_BRPORT_FAST_LEAVE:            {"fastleave", settingIgnored},
	nl.IFLA_BRPORT_MULTICAST_ROUTER:      {"mcast_router", settingIgnored},
	nl.IFLA_BRPORT_MCAST_EHT_HOSTS_LIMIT: {"mcast_eht_hosts_limit", settingIgnored},
	nl.IFLA_BRPORT_MCAST_EHT_HOSTS_CNT:   {"mcast_eht_hosts_cnt", settingIgnored},
	nl.IFLA_BRPORT_MCAST_N_GROUPS:        {"mcast_n_groups", settingIgnored},
	nl.IFLA_BRPORT_MCAST_MAX_GROUPS:      {"mcast_max_groups", settingIgnored},
	nl.IFLA_BRPORT_GROUP_FWD_MASK:        {"group_fwd_mask", settingIgnored},

	// Hairpin lets a frame leave by the port it came from; the fast path gives
	// such frames to the bridge.
	nl.IFLA_BRPORT_MODE: {"hairpin", settingIgnored},
	// Without learning the bridge still forwards by the entries it has, and so
	// does the fast path: a frame whose source has no entry on its port goes to
	// the bridge, which then does not learn it. Refresh leaves such ports out.
	nl.IFLA_BRPORT_LEARNING: {"learning", settingIgnored},
	// Concerns a device with a table of its own (switchdev).
	nl.IFLA_BRPORT_LEARNING_SYNC: {"learning_sync", settingIgnored},
	// Only refines neigh_suppress, and only for broadcasts.
	brportNeighForwardGrat: {"neigh_forward_grat", settingIgnored},

	// Two isolated ports don't reach each other.
	nl.IFLA_BRPORT_ISOLATED: {"isolated", settingFlag},
	// Frames may enter only from addresses that somebody has let in; with MAB
	// there are entries that don't let them in.
	nl.IFLA_BRPORT_LOCKED: {"locked", settingFlag},
	nl.IFLA_BRPORT_MAB:    {"mab", settingFlag},
	// The bridge answers ARP and neighbour solicitations for stations, also
	// where they are sent by unicast.
	nl.IFLA_BRPORT_PROXYARP:       {"proxy_arp", settingFlag},
	nl.IFLA_BRPORT_PROXYARP_WIFI:  {"proxy_arp_wifi", settingFlag},
	nl.IFLA_BRPORT_NEIGH_SUPPRESS: {"neigh_suppress", settingFlag},
	brportNeighVLANSuppress:       {"neigh_vlan_suppress", settingFlag},
	// The bridge maps VLANs to tunnels in the frame's metadata.
	nl.IFLA_BRPORT_VLAN_TUNNEL: {"vlan_tunnel", settingFlag},
	// Frames leave by another port from the moment that this one loses its
	// carrier, before anybody can be told.
	nl.IFLA_BRPORT_BACKUP_PORT: {"backup_port", settingNumber},
	brportBackupNHID:           {"backup_nhid", settingNumber},
}

// appendSetting adds attribute number attr with value v to list, as name=value,
// if it holds the port back.
func appendSetting(list []string, attr int, v []byte) []string {
	var kind settingKind
	if attr < len(settings) {
		kind = settings[attr].kind
	}
	switch {
	case kind == settingUnknown && attr != nl.IFLA_BRPORT_UNSPEC:
		return append(list, fmt.Sprintf("unknown(%d)", attr))
	case kind == settingFlag && number(v) != 0:
		return append(list, settings[attr].name+"=on")
	case kind == settingNumber && number(v) != 0:
		return append(list, fmt.Sprintf("%s=%d", settings[attr].name, number(v)))
	}
	return list
}
