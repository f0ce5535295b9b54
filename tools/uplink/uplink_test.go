package uplink

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/bench"
	"github.com/tapswitch/tapswitch/tools/bench/ways"
	"github.com/tapswitch/tapswitch/tools/livegen"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { lab.Main(m) }

// All ways carry all frames; what they cost is none of a test's business.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t)
	descriptors := countDescriptors(t)
	var progress bytes.Buffer
	r, err := Run(t.Context(), Options{Quick: true, Rounds: 1, Entries: 64, Ports: 3, Progress: &progress})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Floor, Limit, LimitArray, Tapswitch, TapswitchTCP, TCRedirect, Bridge, BridgeDefault} {
		way, ok := r.Ways.Way(name)
		if !ok {
			t.Errorf("%s was not measured", name)
			continue
		}
		if way.Frames == 0 || way.Lost != 0 || way.Gross.Median <= 0 {
			t.Errorf("%s: %d frames, %d lost, %v ns", name, way.Frames, way.Lost, way.Gross.Median)
		}
	}
	for _, name := range []string{UDPUnchosen, UDPChosen, TCPUnchosen, TCPChosen, LongUnchosen, LongChosen} {
		if way, ok := r.Choice.Way(name); !ok || way.Gross.Median <= 0 {
			t.Errorf("%s: measured %t, %v ns", name, ok, way.Gross.Median)
		}
	}
	if want := len(Goals) + len(ChoiceGoals) + 1; len(r.Findings) != want {
		t.Errorf("%d findings for %d goals", len(r.Findings), want)
	}
	if r.MapBytes["fdb"] == 0 {
		t.Errorf("the maps take %v bytes", r.MapBytes)
	}
	type cell struct {
		entries, ports int
		vlans          bool
	}
	want := []cell{
		{2, 1, false}, {64, 1, false}, {2, 1, true}, {64, 1, true},
		{2, 3, false}, {64, 3, false}, {2, 3, true}, {64, 3, true},
	}
	for i, g := range r.Growth {
		if i >= len(want) || want[i] != (cell{g.Entries, g.Ports, g.VLANs}) {
			t.Errorf("cell %d has %s", i, g)
		}
		for _, way := range g.Ways.Ways {
			if way.Lost != 0 {
				t.Errorf("%d entries, %d ports, %s: %d frames lost", g.Entries, g.Ports, way.Name, way.Lost)
			}
		}
		if g.MapBytes["fdb"] == 0 {
			t.Errorf("%d entries, %d ports: the maps take %v bytes", g.Entries, g.Ports, g.MapBytes)
		}
	}
	if len(r.Growth) != len(want) {
		t.Errorf("%d cells, want %d", len(r.Growth), len(want))
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s\n%s", &progress, &text)
	if out, err := json.Marshal(r); err != nil || !strings.Contains(string(out), `"map_bytes"`) {
		t.Errorf("JSON: %v\n%s", err, out)
	}

	devices, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 1 {
		t.Errorf("left devices behind: %v", devices)
	}
	if pins, err := os.ReadDir(pinDir); err == nil && len(pins) > 0 {
		t.Errorf("left pins behind: %v", pins)
	}
	if after := countDescriptors(t); after != descriptors {
		t.Errorf("%d descriptors are open, %d were before", after, descriptors)
	}
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A frame that the datapath leaves to the bridge arrives, too, but must not pass
// for a fast one.
func TestSlowFramesAreNoticed(t *testing.T) {
	h, err := newHost(1)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	taps := h.sink.Taps()
	stations := makeStations(2, taps)
	fast, err := openFastPath(h, taps, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close(false)
	if err := h.addStation(stations[0].Dest, taps[0]); err != nil {
		t.Fatal(err)
	}
	err = sendThrough(h, fast, stations[0])
	if err == nil || !strings.Contains(err.Error(), "pass_learn") {
		t.Errorf("got %v, want an error that names pass_learn", err)
	}
}

// sendThrough sends a few frames through a datapath.
func sendThrough(h *host, fast *fastPath, s ways.Station) error {
	return livegen.OnCPU(senderCPU, func(g *livegen.Generator) error {
		l := &lane{
			host: h, generator: g, fast: fast, pacing: bench.Pacing{Burst: 64, Bursts: 1},
		}
		_, err := l.sampleFast(fast.UplinkRxXDP(), livegen.UDPFrame(s.Dest, s.Source, livegen.MinFrame))
		return err
	})
}
