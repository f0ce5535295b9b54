package demo

import (
	"context"
	"fmt"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A Verdict is how many frames from a port met one verdict.
type Verdict struct {
	Port    string          `json:"port"`
	Verdict vswitch.Verdict `json:"verdict"`
	Frames  uint64          `json:"frames"`
	Meaning string          `json:"meaning"`
}

// An Account compares what the kernel received by a port with what the datapath
// decided on, since the daemon was started.
type Account struct {
	Check
	Port     string `json:"port"`
	Received uint64 `json:"received_frames"` // by the kernel's counter of the device
	Decided  uint64 `json:"verdict_frames"`  // the sum of all verdicts
}

// A Loss is frames that the fast path sent to a port and that were lost on the
// way.
type Loss struct {
	Check
	Port   string `json:"port"`
	Reason string `json:"reason"`
	Frames uint64 `json:"frames"`
	// InTransfers is how many of them were lost while files were fetched over TCP,
	// which fills a queue until it overflows.
	InTransfers uint64 `json:"in_transfers_frames"`
	Meaning     string `json:"meaning"`
}

// lost counts lost frames by port and reason.
type lost map[lostBy]uint64

type lostBy struct{ port, reason string }

// at gives all that was lost on the way to a port.
func (l lost) at(port string) (n uint64) {
	for by, frames := range l {
		if by.port == port {
			n += frames
		}
	}
	return n
}

func (s *scenario) readLost(ctx context.Context) (lost, error) {
	drops, err := s.api.Drops(ctx)
	if err != nil {
		return nil, err
	}
	l := lost{}
	for _, d := range drops {
		l[lostBy{d.Port, d.Reason}] += d.Frames
	}
	return l, nil
}

// account looks at what became of all frames until now.
func (s *scenario) account(ctx context.Context) error {
	s.progress.step("adding up the counters")
	// The kernel's counter and the datapath's don't count a frame at the same
	// moment, and some neighbour always has something to say.
	var stats []control.Stats
	err := poll(ctx, func() (balanced bool, err error) {
		if stats, err = s.api.Stats(ctx); err != nil {
			return false, err
		}
		received, err := s.readRxFrames()
		if err != nil {
			return false, err
		}
		s.report.Accounts = judgeAccounts(s.ports(), s.base, received, newCounters(stats))
		for _, a := range s.report.Accounts {
			if !a.OK {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	for _, p := range stats {
		for _, v := range p.Verdicts {
			if v.Frames > 0 {
				s.report.Verdicts = append(s.report.Verdicts, Verdict{p.Port, v.Verdict, v.Frames, v.Meaning})
			}
		}
	}
	drops, err := s.api.Drops(ctx)
	if err != nil {
		return err
	}
	s.report.Losses = judgeLosses(s.ports(), drops, s.inTransfers)
	return nil
}

// judgeAccounts checks that every frame met one verdict.
func judgeAccounts(ports []string, base, received rxFrames, decided counters) []Account {
	var rows []Account
	for _, port := range ports {
		n := received[port][0]
		least, most := n-base[port][1], n-base[port][0]
		a := Account{
			Check: Check{Name: fmt.Sprintf("each frame from %s met one verdict", port)},
			Port:  port, Received: most, Decided: decided.sum(port),
		}
		// The port was attached between two looks; what came meanwhile may have met
		// a verdict or not.
		if a.Decided >= least && a.Decided < most {
			a.Received = a.Decided
		}
		a.OK = a.Received == a.Decided
		a.Seen = fmt.Sprintf("%d frames received, %d verdicts", a.Received, a.Decided)
		rows = append(rows, a)
	}
	return rows
}

// judgeLosses checks that nothing was lost after its verdict, but for what TCP
// loses when it finds out how fast it can be.
func judgeLosses(ports []string, drops []control.Drop, inTransfers lost) []Loss {
	var rows []Loss
	seen := map[string]bool{}
	for _, d := range drops {
		if d.Frames == 0 {
			continue
		}
		seen[d.Port] = true
		l := Loss{Port: d.Port, Reason: d.Reason, Frames: d.Frames, InTransfers: inTransfers[lostBy{d.Port, d.Reason}], Meaning: d.Meaning}
		l.OK = l.Frames == l.InTransfers && l.Reason == ringFull
		l.Seen = fmt.Sprintf("%d frames lost, %d of them in transfers over TCP, because of %s: %s", l.Frames, l.InTransfers, l.Reason, l.Meaning)
		l.Name = fmt.Sprintf("nothing else lost on the way to %s: %s", d.Port, d.Reason)
		rows = append(rows, l)
	}
	for _, port := range ports {
		if !seen[port] {
			rows = append(rows, Loss{
				Check: Check{Name: "nothing lost on the way to " + port, OK: true, Seen: "no frames lost"},
				Port:  port, Reason: "-",
			})
		}
	}
	return rows
}

// ringFull is control.Drop's reason for frames that a tap had no room for.
const ringFull = "ring full"
