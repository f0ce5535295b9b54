package vswitch

// A Verdict is what the datapath did with one frame, and why. Every frame on a
// port's ingress hook gets exactly one. The numbers are shared with the BPF
// programs (hostbpf/bpf/tapswitch.h); they are stable and never used again for
// something else, because a pinned map outlives the daemon that made it.
type Verdict uint32

// The verdicts. All but Redirected leave the frame to the bridge.
const (
	Redirected      Verdict = iota // sent out of the port that the FDB names
	PassExpired                    // the daemon has not renewed the deadline
	PassNoPort                     // the device is not a port that the datapath knows
	PassHeld                       // the ingress port is held back
	PassShort                      // shorter than its headers may be, or so is its first buffer
	PassMultiBuffer                // spread over several buffers, which a tap does not take by XDP
	PassGroup                      // broadcast or multicast: the bridge floods and snoops
	PassTagged                     // its tag is of another kind than the bridge's VLANs
	PassLearn                      // source not known on this port: the bridge learns or refuses it
	PassUnknown                    // destination not in the FDB: the bridge floods
	PassHost                       // for the host's own stack
	PassSamePort                   // destination is behind the port it came from
	PassTooLong                    // longer than the egress port takes
	PassEgressHeld                 // the egress port is held back
	PassNoDevice                   // the egress device takes no XDP frames, or has just gone away
	PassBulk                       // of a bulk TCP flow: merged first, and sent by the tc hook
	PassPartial                    // from a promoted guest, without its checksum, which the tc hook keeps track of
	PassIsolated                   // from one isolated port to another: the bridge drops it
	PassVLAN                       // its VLAN is not on one of the two ports, or belongs to a VLAN device
	PassNoRoom                     // no room in front of it for the tag that it would leave with
	PassFiltered                   // of a kind, or from an address, that a port's filter may stop
	numVerdicts
)

var verdictInfo = [numVerdicts]struct{ name, meaning string }{
	Redirected:      {"redirected", "sent by the fast path"},
	PassExpired:     {"pass_expired", "the daemon has not renewed the datapath's deadline"},
	PassNoPort:      {"pass_no_port", "the device is not a port that the datapath knows"},
	PassHeld:        {"pass_held", "the port it came from is held back"},
	PassShort:       {"pass_short", "too short to hold all headers that the bridge may ask for"},
	PassMultiBuffer: {"pass_multi_buffer", "spread over several buffers"},
	PassGroup:       {"pass_group", "broadcast or multicast"},
	PassTagged:      {"pass_tagged", "has a VLAN tag of another kind than the bridge's"},
	PassLearn:       {"pass_learn", "source not known on this port"},
	PassUnknown:     {"pass_unknown", "destination not in the FDB"},
	PassHost:        {"pass_host", "for the host itself"},
	PassSamePort:    {"pass_same_port", "destination is behind the port it came from"},
	PassTooLong:     {"pass_too_long", "longer than the egress port takes"},
	PassEgressHeld:  {"pass_egress_held", "the port it would leave by is held back"},
	PassNoDevice:    {"pass_no_device", "the device it would leave by takes no XDP frames, or has just gone"},
	PassBulk:        {"pass_bulk", "of a bulk TCP flow: left for the tc hook, which sends it merged"},
	PassIsolated:    {"pass_isolated", "from one isolated port to another"},
	PassPartial:     {"pass_partial", "without its checksum, which XDP can't see: left for the tc hook"},
	PassVLAN:        {"pass_vlan", "its VLAN is not on both ports, or belongs to a VLAN device"},
	PassNoRoom:      {"pass_no_room", "no room for the VLAN tag that it would leave with"},
	PassFiltered:    {"pass_filtered", "its port's filter may stop it"},
}

var verdictNames = func() []string {
	names := make([]string, numVerdicts)
	for v, info := range verdictInfo {
		names[v] = info.name
	}
	return names
}()

// Verdicts gives all verdicts, in the order of their numbers.
func Verdicts() []Verdict {
	all := make([]Verdict, numVerdicts)
	for i := range all {
		all[i] = Verdict(i)
	}
	return all
}

// String gives the verdict's name as counters and metrics show it.
func (v Verdict) String() string { return enumName(verdictNames, v) }

// Meaning gives the verdict's reason in words.
func (v Verdict) Meaning() string {
	if v < numVerdicts {
		return verdictInfo[v].meaning
	}
	return "from a newer datapath"
}

func (v Verdict) MarshalText() ([]byte, error)  { return []byte(v.String()), nil }
func (v *Verdict) UnmarshalText(b []byte) error { return enumParse(verdictNames, b, v) }
