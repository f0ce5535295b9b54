package guestpath

import (
	"bytes"
	"net"
	"testing"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// All ways carry or drop all frames, forwarding in bulk; what they cost is none of a
// test's business.
func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Options{Quick: true, Rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Floor, L2fwd, FIB, Routes, Kernel, Drop, TCDrop, NFTDrop} {
		if way, ok := r.Ways.Way(name); !ok || way.Frames == 0 || way.Lost != 0 || way.Gross.Median <= 0 {
			t.Errorf("%s: measured %t, %d frames, %d lost, %v ns", name, ok, way.Frames, way.Lost, way.Gross.Median)
		}
	}
	if len(r.Findings) != len(Goals) {
		t.Errorf("%d findings for %d goals", len(r.Findings), len(Goals))
	}
	for _, name := range []string{L2fwd, FIB, Routes} {
		// 16 where nobody else redirects on this machine meanwhile.
		if n := r.FramesPerFlush[name]; n < 4 || n > 16 {
			t.Errorf("%s hands over %.2f frames at once, want up to 16", name, n)
		}
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &text)
	if devices, err := net.Interfaces(); err != nil || len(devices) != 1 {
		t.Errorf("left devices behind: %v, error %v", devices, err)
	}
}
