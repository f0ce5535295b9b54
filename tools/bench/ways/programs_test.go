package ways_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/bench/ways"
	"github.com/tapswitch/tapswitch/tools/livegen"
	"github.com/tapswitch/tapswitch/tools/tapsink"
)

func TestMain(m *testing.M) { lab.Main(m) }

// openSink gives a sink with room for a burst in each of its taps.
func openSink(t *testing.T, taps int) *tapsink.Sink {
	t.Helper()
	sink, err := tapsink.Open(tapsink.Options{Taps: taps, QueueLen: 2 * livegen.MinBurst, CPU: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	return sink
}

// send sends n frames and gives how many of them arrived at each tap.
func send(t *testing.T, sink *tapsink.Sink, traffic livegen.Traffic, n int) []uint64 {
	t.Helper()
	before := sink.Counts()
	err := livegen.OnCPU(0, func(g *livegen.Generator) error {
		_, err := g.Send(traffic, n)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sink.Settle()
	counts := sink.Counts()
	for i := range counts {
		counts[i] -= before[i]
	}
	return counts
}

func TestWhereFramesGo(t *testing.T) {
	sink := openSink(t, 2)
	taps := sink.Taps()
	a, b := taps[0].Ifindex, taps[1].Ifindex
	macs := [][6]byte{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, {2, 0, 0, 0, 0, 3}}
	p, err := ways.Load(ways.Options{Egress: a, Ports: []int{a, b}, Stations: []ways.Station{
		{Dest: macs[0], Source: macs[2], Ifindex: a},
		{Dest: macs[1], Source: macs[2], Ifindex: b},
		{Dest: macs[1], Source: macs[2], Ifindex: b},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.SetUnderTest(p.LimitSprayed); err != nil {
		t.Fatal(err)
	}
	const n = 3 * 1000
	tests := []struct {
		name    string
		traffic livegen.Traffic
		want    []uint64
	}{
		{"floor", livegen.Traffic{Program: p.Floor}, []uint64{0, 0}},
		{"limit", livegen.Traffic{Program: p.Limit}, []uint64{n, 0}},
		{"limit by an array", livegen.Traffic{Program: p.LimitArray}, []uint64{n, 0}},
		{"sprayed limit", livegen.Traffic{Program: p.Spray}, []uint64{n / 3, 2 * n / 3}},
		{"pass", livegen.Traffic{Program: p.Pass}, []uint64{0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.traffic.Ingress = 1
			tt.traffic.Frame = livegen.UDPFrame(macs[0], macs[1], livegen.MinFrame)
			if diff := cmp.Diff(tt.want, send(t, sink, tt.traffic, n)); diff != "" {
				t.Errorf("frames by tap (-want +got):\n%s", diff)
			}
		})
	}
}

// The program under test sees each pair of stations as often as the others.
func TestSprayCallsProgram(t *testing.T) {
	p, err := ways.Load(ways.Options{Stations: make([]ways.Station, 10)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.SetUnderTest(p.Count); err != nil {
		t.Fatal(err)
	}
	traffic := livegen.Traffic{Program: p.Spray, Ingress: 1, Frame: livegen.UDPFrame([6]byte{}, [6]byte{}, 0)}
	if err := livegen.OnCPU(0, func(g *livegen.Generator) error { _, err := g.Send(traffic, 1000); return err }); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Counted(); err != nil || n != 1000 {
		t.Errorf("the program under test met %d frames (%v), want 1000", n, err)
	}
}

func TestTooManyStations(t *testing.T) {
	if _, err := ways.Load(ways.Options{Stations: make([]ways.Station, ways.MaxStations+1)}); err == nil {
		t.Error("no error")
	}
}
