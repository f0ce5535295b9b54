package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A Loss is the frames that were lost on the way out of a port since the daemon
// was started.
type Loss struct {
	Check
	Port   string `json:"port"`
	Frames uint64 `json:"frames"`
	// InTransfers is how many of them were lost while files were fetched over TCP,
	// which fills a queue until it overflows.
	InTransfers uint64   `json:"in_transfers_frames"`
	Reasons     []string `json:"reasons"`
}

// lost counts frames that were lost at a port, by two counters, neither of which
// sees all: the daemon's sees what XDP has sent and the device refused, and the
// device's own what others have sent, and of a bulk of frames by XDP that a tap
// had no room for only one (tun_xdp_xmit).
type lost struct {
	byXDP    map[string]uint64 // by the daemon's reason
	byDevice uint64
}

// readLost asks for what was lost at each port so far.
func (s *scenario) readLost(ctx context.Context) (map[string]lost, error) {
	drops, err := s.api.Drops(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]lost{}
	for _, port := range s.ports() {
		n, err := s.readTxDropped(port)
		if err != nil {
			return nil, err
		}
		all[port] = newLost(port, n, drops)
	}
	return all, nil
}

func newLost(port string, byDevice uint64, drops []control.Drop) lost {
	l := lost{byXDP: map[string]uint64{}, byDevice: byDevice}
	for _, d := range drops {
		if d.Port == port && !d.Shared {
			l.byXDP[d.Reason] += d.Frames
		}
	}
	return l
}

// since gives what was lost after before.
func (l lost) since(before lost) lost {
	d := lost{byXDP: map[string]uint64{}, byDevice: l.byDevice - before.byDevice} // the device stays
	for reason, n := range l.byXDP {
		if n > before.byXDP[reason] {
			d.byXDP[reason] = n - before.byXDP[reason]
		}
	}
	return d
}

// frames gives how many frames were lost, which is exact as long as only XDP sent
// to the port, or only others.
func (l lost) frames() uint64 {
	var sum uint64
	for _, n := range l.byXDP {
		sum += n
	}
	return max(sum, l.byDevice)
}

// reasons gives why.
func (l lost) reasons() []string {
	reasons := slices.AppendSeq([]string{}, maps.Keys(l.byXDP)) // not nil, which JSON tells apart
	slices.Sort(reasons)
	if len(reasons) == 0 && l.byDevice > 0 {
		reasons = append(reasons, "dropped by the device")
	}
	return reasons
}

// ringFull is control.Drop's reason for frames that a tap had no room for.
const ringFull = "ring full"

// judgeLoss checks that nothing was lost but what TCP loses when it finds out how
// fast it can be. Both are since the daemon's start.
func judgeLoss(port string, all, inTransfers lost) Loss {
	l := Loss{
		Check: Check{Name: "nothing lost on the way to " + port},
		Port:  port, Frames: all.frames(), InTransfers: inTransfers.frames(), Reasons: all.reasons(),
	}
	l.OK = all.since(inTransfers).frames() == 0
	for reason := range all.byXDP {
		l.OK = l.OK && reason == ringFull
	}
	l.Seen = "no frames lost"
	if l.Frames > 0 {
		l.Seen = fmt.Sprintf("%d frames lost, %d of them in transfers over TCP: %s", l.Frames, l.InTransfers, strings.Join(l.Reasons, ", "))
	}
	return l
}
