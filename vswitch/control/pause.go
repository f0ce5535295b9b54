package control

import "time"

// Bounds of a pause. It ends by itself, so that a capture that somebody forgot
// does not leave guests slow.
const (
	DefaultPause = time.Minute
	MinPause     = time.Second
	MaxPause     = 24 * time.Hour
)

// A Pause tells what became of a request to pause or resume.
type Pause struct {
	Name    string `json:"name"` // of the port or bridge, as asked for
	Ifindex int    `json:"ifindex"`
	// Ports are those that it concerns.
	Ports []string `json:"ports"`
	// Until is when the pause ends by itself; zero if there is none any more.
	Until time.Time `json:"until,omitzero"`
	// Ended says that there was a pause, which the request has ended.
	Ended bool `json:"ended"`
	// Still names the bridge by whose pause a resumed port is paused still.
	Still string `json:"still,omitempty"`
}
