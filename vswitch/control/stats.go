package control

import "github.com/tapswitch/tapswitch/vswitch"

// Stats counts the frames of one port since the datapath was made; see NoPort for
// those of none.
type Stats struct {
	Port    string       `json:"port"`
	Ifindex int          `json:"ifindex"`
	Bridge  string       `json:"bridge"`
	Role    vswitch.Role `json:"role"`
	// Verdicts counts the frames that came in by the port, each once: at the first
	// hook that they met.
	Verdicts []VerdictCount `json:"verdicts"`
	// Merged counts, where that hook is XDP, what the tc hook made of those that
	// XDP passed. One of these may be several frames of the wire, merged by GRO.
	Merged []VerdictCount `json:"merged"`
	// Flushes counts how often the kernel handed redirected frames to the port to
	// leave by it, and FlushedFrames how many frames these were together.
	Flushes       uint64 `json:"flushes"`
	FlushedFrames uint64 `json:"flushed_frames"`
}

// NoPort makes the Stats of frames that came in by devices which are no ports: of
// ifindex 0, which no device has, with the one verdict that they can have met.
func NoPort(frames uint64) Stats {
	v := vswitch.PassNoPort
	return Stats{Port: "-", Bridge: "-", Verdicts: []VerdictCount{{Verdict: v, Frames: frames, Meaning: v.Meaning()}}}
}

// A VerdictCount counts the frames that met one verdict.
type VerdictCount struct {
	Verdict vswitch.Verdict `json:"verdict"`
	Frames  uint64          `json:"frames"`
	Meaning string          `json:"meaning"`
}

// NewVerdictCounts makes the counts of all verdicts; frames gives the number of
// frames for each.
func NewVerdictCounts(frames func(vswitch.Verdict) uint64) []VerdictCount {
	var counts []VerdictCount
	for _, v := range vswitch.Verdicts() {
		counts = append(counts, VerdictCount{Verdict: v, Frames: frames(v), Meaning: v.Meaning()})
	}
	return counts
}
