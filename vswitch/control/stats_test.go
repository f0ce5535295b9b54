package control_test

import (
	"testing"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

func TestNewVerdictCounts(t *testing.T) {
	counts := control.NewVerdictCounts(func(v vswitch.Verdict) uint64 { return uint64(v) * 10 })
	if len(counts) != len(vswitch.Verdicts()) {
		t.Fatalf("%d counts, want one for each of %d verdicts", len(counts), len(vswitch.Verdicts()))
	}
	for i, c := range counts {
		if c.Verdict != vswitch.Verdict(i) || c.Frames != uint64(i)*10 || c.Meaning != c.Verdict.Meaning() {
			t.Errorf("count %d is %+v", i, c)
		}
	}
}
