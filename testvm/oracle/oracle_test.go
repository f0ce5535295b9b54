package oracle

import (
	"errors"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

var (
	frames = flag.Int("frames", 20000, "how many frames TestOracle compares")
	seed   = flag.Uint64("seed", 0, "what determines them, as a failed run has printed it; 0 draws one")
)

// daemonPath is the tapswitchd that the tests run.
var daemonPath string

type testMain struct{ m *testing.M }

// Run builds the daemon first, so that the tests run the same tree's.
func (t testMain) Run() int {
	path, remove, err := lab.BuildDaemon()
	if err != nil {
		panic(err)
	}
	defer remove()
	daemonPath = path
	return t.m.Run()
}

func TestMain(m *testing.M) { lab.Main(testMain{m}) }

func drawSeed(t *testing.T) uint64 {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("again: go test ./testvm/oracle -run '^%s$' -frames %d -seed %d", t.Name(), *frames, s)
	return s
}

// occurring are the verdicts that the oracle's frames must meet. The rest can't
// be had at will: a port that the datapath doesn't know or whose device has gone is
// a matter of a moment (pass_no_port, pass_no_device); and a veth's frames come
// to XDP in several buffers only with an MTU at which XDP is kept off it
// (pass_multi_buffer). No guest is promoted (pass_partial), and few ports at a time
// are isolated or held back (pass_isolated, pass_held).
var occurring = []vswitch.Verdict{
	vswitch.Redirected, vswitch.PassExpired, vswitch.PassShort, vswitch.PassGroup,
	vswitch.PassLearn, vswitch.PassUnknown, vswitch.PassHost, vswitch.PassSamePort,
	vswitch.PassTooLong, vswitch.PassEgressHeld, vswitch.PassBulk,
}

func TestOracle(t *testing.T) {
	r := compare(t, Options{}, *frames)
	for _, v := range occurring {
		if r.Verdicts[v] == 0 {
			t.Errorf("no frame met the verdict %s", v)
		}
	}
	if r.Redirected() < 0.15 {
		t.Errorf("%.0f%% of the frames were redirected, want 15%%", 100*r.Redirected())
	}
}

func TestOracleWithMulticastSnooping(t *testing.T) {
	compare(t, Options{Snooping: true}, *frames/4)
}

func TestOracleWithJumboUplink(t *testing.T) {
	compare(t, Options{Jumbo: true}, *frames/4)
}

// inVLANs are the verdicts that frames in VLANs must meet beside.
var inVLANs = []vswitch.Verdict{vswitch.PassVLAN, vswitch.PassTagged}

// TestOracleWithVLANs needs a kernel whose bridge has VLAN filtering. Where the
// machine's has none, package guest runs it in one that does.
func TestOracleWithVLANs(t *testing.T) {
	r := compare(t, Options{VLANs: true}, *frames)
	for _, v := range append(inVLANs, vswitch.Redirected, vswitch.PassLearn, vswitch.PassUnknown) {
		if r.Verdicts[v] == 0 {
			t.Errorf("no frame met the verdict %s", v)
		}
	}
}

// Frames that no honest guest sends: 100,000 of them by
// go test ./testvm/oracle -run Malformed -frames 100000.
func TestOracleWithMalformedFrames(t *testing.T) {
	r := compare(t, Options{Malformed: true}, *frames)
	for _, v := range []vswitch.Verdict{vswitch.Redirected, vswitch.PassShort, vswitch.PassTooLong, vswitch.PassLearn} {
		if r.Verdicts[v] == 0 {
			t.Errorf("no frame met the verdict %s", v)
		}
	}
}

func compare(t *testing.T, o Options, frames int) (all Report) {
	t.Helper()
	o.Daemon, o.Log = daemonPath, t.Output()
	s := drawSeed(t)
	for episode := uint64(0); all.Frames < frames; episode++ {
		r, c, err := Run(t.Context(), o, rand.NewPCG(s, episode), min(episodeFrames, frames-all.Frames))
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skipf("SKIPPED: %v", err)
		}
		if err != nil {
			if d := (*Difference)(nil); errors.As(err, &d) {
				shrinkAndKeep(t, c, d)
			}
			t.Fatal(err)
		}
		all.add(&r)
		t.Logf("%d frames compared", all.Frames)
	}
	t.Log(all.String())
	return all
}
