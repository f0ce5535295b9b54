package control

import "time"

// Status is the switch as a whole.
type Status struct {
	Version string    `json:"version"` // of the daemon
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Kernel  string    `json:"kernel"` // release, as uname -r gives it
	// Lease is for how many seconds after Renewed the datapath may act.
	Lease    float64   `json:"lease_s"`
	Renewed  time.Time `json:"renewed"`
	Bridges  []Bridge  `json:"bridges"`
	Totals   Totals    `json:"totals"`
	FDB      FDBUse    `json:"fdb"`
	Datapath Datapath  `json:"datapath"`
	Libvirt  Libvirt   `json:"libvirt"`
	// Warnings are of what a person should mend on the host, in words.
	Warnings []string `json:"warnings"`
}

// Deadline gives the time at which the datapath stops acting unless the daemon
// renews its lease.
func (s Status) Deadline() time.Time {
	return s.Renewed.Add(time.Duration(s.Lease * float64(time.Second)))
}

// A Bridge is a Linux bridge that the switch serves, with its ports by state.
type Bridge struct {
	Name    string `json:"name"`
	Ifindex int    `json:"ifindex"`
	Up      bool   `json:"up"`
	Ports   int    `json:"ports"`
	Fast    int    `json:"fast"` // ports that are fast in both directions
	Held    int    `json:"held"` // ports that are held back in one direction or both
	// FDBEntries counts the bridge's entries in the datapath.
	FDBEntries int `json:"fdb_entries"`
}

// Libvirt says what the daemon hears from libvirt. Without it ports have no guests'
// names, and everything else is as it was.
type Libvirt struct {
	Asked     bool   `json:"asked"`     // false: the configuration says not to
	Connected bool   `json:"connected"` // since Since
	Socket    string `json:"socket"`
	// Error says why it is not connected.
	Error   string    `json:"error"`
	Since   time.Time `json:"since"`
	Domains int       `json:"domains"` // that run or are paused
	Guests  int       `json:"guests"`  // of their NICs, those that are ports of the switch
	// Portless are the others, by the names of their domains.
	Portless []Portless `json:"portless"`
}

// Totals counts frames over all ports since the datapath was made, which may be
// longer ago than the daemon's start.
type Totals struct {
	Redirected uint64 `json:"redirected"` // by the fast path
	Passed     uint64 `json:"passed"`     // to the bridge
	Lost       uint64 `json:"lost"`       // of those redirected
}

// FDBUse says how full the datapath's forwarding table is.
type FDBUse struct {
	Entries  int `json:"entries"`
	Capacity int `json:"capacity"`
	// Full counts the entries for which there was no room. Frames for them go by
	// the bridge.
	Full int `json:"full"`
	// Refused counts how often a port had a new address beyond its limit.
	Refused uint64 `json:"refused"`
}

// Datapath tells of the BPF side.
type Datapath struct {
	// Pins is the directory on the BPF file system where links and maps are.
	Pins string `json:"pins"`
	// Adopted says that the daemon took over the datapath of an earlier one.
	Adopted bool `json:"adopted"`
	// FramesPerFlush is the mean of frames that the kernel handed to a device at
	// once, 0 before the first.
	FramesPerFlush float64 `json:"frames_per_flush"`
	// BulkFlows counts the TCP flows that take the way after GRO now.
	BulkFlows int `json:"bulk_flows"`
}
