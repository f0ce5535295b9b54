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
	lost, err := s.readLost(ctx)
	if err != nil {
		return err
	}
	for _, port := range s.ports() {
		s.report.Losses = append(s.report.Losses, judgeLoss(port, lost[port].since(s.lostAtStart[port]), s.lostInTransfers[port]))
	}
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
