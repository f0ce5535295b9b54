package demo

import (
	"context"
	"fmt"

	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/tools/uplink"
)

// costRounds is how often each way is measured: seldom enough for a minute,
// often enough for a median.
const costRounds = 7

// A Cost is what it costs to bring a small frame from the NIC to a guest.
type Cost struct {
	FrameBytes  int   `json:"frame_bytes"` // on the wire, with FCS
	BrNetfilter bool  `json:"br_netfilter"`
	Rounds      int   `json:"rounds"`
	Ways        []Way `json:"ways"`
	// Goals are what is aimed at. They depend on the machine and on what else it
	// does, so whether they are met is no check.
	Goals []bench.Finding `json:"goals"`
}

// A Way is one way for a frame; costs are medians over the rounds.
type Way struct {
	Check
	Way     string `json:"way"`
	Meaning string `json:"meaning"`
	// Gross and Net are the sender's CPU time per frame, with and without the
	// floor's of the same round.
	Gross float64 `json:"gross_ns_per_frame"`
	Net   float64 `json:"net_ns_per_frame"`
	// Ratio is Net over the fast path's of the same round; 0 for the floor.
	Ratio float64 `json:"net_over_tapswitch"`
	Loss  float64 `json:"loss_fraction"`
}

// ways are the ways that are shown.
var ways = []struct{ name, meaning string }{
	{uplink.Floor, "dropped at once: what making and sending a frame costs"},
	{uplink.Limit, "the least that an XDP redirect into a tap can do"},
	{uplink.Tapswitch, "the fast path"},
	{uplink.TCRedirect, "a redirect at the tc hook, with an skb"},
	{uplink.Bridge, "the bridge, with br_netfilter off"},
	{uplink.BridgeDefault, "the bridge, as the kernel has it by default"},
}

// measureFrames compares what a frame costs by each way.
func (s *scenario) measureFrames(ctx context.Context) error {
	s.progress.step("measuring what a small frame costs")
	report, err := uplink.Run(ctx, uplink.Options{Rounds: costRounds, Entries: -1, Ports: -1, Progress: s.progress})
	if err != nil {
		return fmt.Errorf("measuring what a frame costs: %w", err)
	}
	s.report.Cost, err = newCost(report)
	return err
}

func newCost(report *uplink.Report) (*Cost, error) {
	c := &Cost{
		FrameBytes: report.FrameBytes, BrNetfilter: report.BrNetfilter, Rounds: report.Ways.Rounds, Goals: report.Findings,
	}
	for _, w := range ways {
		r, ok := report.Ways.Way(w.name)
		if !ok {
			return nil, fmt.Errorf("looking for what a frame costs: %q was not measured", w.name)
		}
		row := Way{Way: w.name, Meaning: w.meaning, Gross: r.Gross.Median, Net: r.Net.Median, Loss: r.Loss}
		if w.name != uplink.Floor {
			f, err := report.Ways.Judge(bench.Goal{Way: w.name, Base: uplink.Tapswitch})
			if err != nil {
				return nil, err
			}
			row.Ratio = f.Ratio.Median
		}
		row.judge()
		c.Ways = append(c.Ways, row)
	}
	return c, nil
}

// judge fills in the check: a way that loses frames is cheaper than it should be,
// and the bridge should cost more than the fast path.
func (w *Way) judge() {
	w.Name = w.Way + " costs what it should"
	switch {
	case w.Loss > uplink.MaxLoss:
		w.Seen = fmt.Sprintf("%.2f %% of the frames were lost, so its cost is not to be compared: let nothing else run on the machine", 100*w.Loss)
	case (w.Way == uplink.Bridge || w.Way == uplink.BridgeDefault) && w.Ratio <= 1:
		w.Seen = fmt.Sprintf("%.2f × the fast path, which should be the cheaper one", w.Ratio)
	default:
		w.OK = true
		w.Seen = fmt.Sprintf("%.0f ns per frame", w.Gross)
	}
}
