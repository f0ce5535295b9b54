package control_test

import (
	"errors"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

func TestMetrics(t *testing.T) {
	want, err := os.Open("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	if err := testutil.CollectAndCompare(control.NewCollector(controltest.Sample()), want); err != nil {
		t.Error(err)
	}
}

func TestMetricsLint(t *testing.T) {
	problems, err := testutil.CollectAndLint(control.NewCollector(controltest.Sample()))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// The pedantic registry checks that what is collected was described, and that no
// metric comes twice.
func TestMetricsConsistent(t *testing.T) {
	src := controltest.Sample()
	src.PortsValue[0].Name = "bad\xff"
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(control.NewCollector(src))
	if _, err := r.Gather(); err != nil {
		t.Error(err)
	}
}

func TestMetricsServed(t *testing.T) {
	for _, tt := range []struct {
		name string
		src  *controltest.Source
		want int
	}{
		{"good", controltest.Sample(), 200},
		{"source fails", &controltest.Source{Err: errors.New("no")}, 500},
	} {
		g := prometheus.NewRegistry()
		g.MustRegister(control.NewCollector(tt.src))
		w := httptest.NewRecorder()
		control.NewServer(tt.src, g).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != tt.want {
			t.Errorf("%s: status %d, want %d: %s", tt.name, w.Code, tt.want, w.Body)
		}
	}
}

// 256 ports with every verdict are what a large host has.
func BenchmarkScrape(b *testing.B) {
	src := &controltest.Source{}
	src.StatsValue = func(int) (stats []control.Stats) {
		for i := range 256 {
			stats = append(stats, control.Stats{
				Port: "vnet", Ifindex: i, Bridge: "br0", Role: vswitch.RoleGuest,
				Verdicts: control.NewVerdictCounts(func(vswitch.Verdict) uint64 { return 1 }),
			})
		}
		return stats
	}
	g := control.NewRegistry(src)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}
