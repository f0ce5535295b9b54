package mix

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

func buildDaemon(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tapswitchd")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../cmd/tapswitchd").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// One class from end to end; the figures only have to be possible.
func TestRun(t *testing.T) {
	var progress bytes.Buffer
	r, err := Run(t.Context(), Options{Daemon: buildDaemon(t), Class: Mix, Quick: true, Progress: &progress})
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	if len(r.Loads) != 2 || len(r.Findings) != 14 {
		t.Fatalf("%d loads and %d findings, want 2 and 14", len(r.Loads), len(r.Findings))
	}
	for _, l := range r.Loads {
		for _, w := range l.Ways {
			for _, f := range []Figure{Goodput, Rate, P50, P99, Offered, Datagrams, HostPerKB, HostPerIn, HostCPUs, EndsCPUs, FrameOut} {
				if w.Figures[f].Median <= 0 {
					t.Errorf("%s by %s: %s is %v", l.Family, w.Way, f, w.Figures[f].Median)
				}
			}
			if loss := w.Figures[Loss].Median; loss < 0 || loss > 1 {
				t.Errorf("%s by %s: a loss of %v", l.Family, w.Way, loss)
			}
			if cpus := w.Figures[HostCPUs].Median; cpus > float64(r.CPUs) {
				t.Errorf("%s by %s: the host took %v of %d CPUs", l.Family, w.Way, cpus, r.CPUs)
			}
		}
		// Bulk TCP is merged by tapswitch, and by XDP it isn't. A tap counts the
		// virtio-net header of redirected frames.
		const longest = 1514 + lab.VnetHdrLen
		if n := l.way(AllXDP).Figures[FrameOut].Max; n > longest {
			t.Errorf("%s: frames of %v bytes by XDP, want %d at most", l.Family, n, longest)
		}
		if fast, xdp := l.way(Tapswitch).Figures[FrameOut].Median, l.way(AllXDP).Figures[FrameOut].Median; fast < xdp {
			t.Errorf("%s: frames of %.0f bytes, shorter than the %.0f by XDP: bulk TCP is not merged", l.Family, fast, xdp)
		}
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Error(err)
	}
	t.Logf("%s", &text)
	dir := filepath.Join(t.TempDir(), "new")
	if err := r.Plot(dir, "tapswitch bench mix"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mix-ipv4.svg", "mix-ipv4.png", "mix-ipv6.svg", "mix-ipv6.png"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || len(b) < 1000 {
			t.Errorf("%s has %d bytes, %v", name, len(b), err)
		}
	}
}

// Flows that change their way are not reordered. What is on its way at once fits the
// rings, so nothing is lost and the bridge has none out of order either.
func TestCheckOrder(t *testing.T) {
	r, err := CheckOrder(t.Context(), OrderOptions{Daemon: buildDaemon(t)})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Error(err)
	}
	t.Logf("%s", &text)
	if !r.OK || r.Ways[1].OutOfOrder > 0 {
		t.Errorf("segments came out of order: %+v", r.Ways)
	}
}
