package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server on a real socket for the test, and gives a client of it.
func serve(t *testing.T, src control.Switch) *control.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "t.sock")
	l, err := control.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- control.Serve(ctx, l, control.NewServer(src, control.NewRegistry(src))) }()
	c := control.Dial(socket)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
		if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there after the server has ended (%v)", err)
		}
	})
	return c
}

// The client gives what the source holds: nothing is lost or renamed on the way.
func TestRoundTrip(t *testing.T) {
	src := controltest.Sample()
	c := serve(t, src)
	ctx := t.Context()
	check := func(what string, want, got any, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s (-source +client):\n%s", what, d)
		}
	}
	status, err := c.Status(ctx)
	check("status", src.StatusValue, status, err)
	ports, err := c.Ports(ctx)
	check("ports", src.PortsValue, ports, err)
	entries, err := c.FDB(ctx, control.FDBFilter{})
	check("fdb", src.FDBValue, entries, err)
	drops, err := c.Drops(ctx)
	check("drops", src.DropsValue, drops, err)
	stats, err := c.Stats(ctx)
	check("stats", src.StatsValue(0), stats, err)
}

func TestFDBFilter(t *testing.T) {
	src := controltest.Sample()
	c := serve(t, src)
	for _, tt := range []struct {
		name   string
		filter control.FDBFilter
		want   int
	}{
		{"none", control.FDBFilter{}, 5},
		{"bridge", control.FDBFilter{Bridge: "br0"}, 5},
		{"other bridge", control.FDBFilter{Bridge: "br-lab"}, 0},
		{"mac", control.FDBFilter{MAC: vswitch.MAC{0x52, 0x54, 0, 0, 0, 0x99}}, 2},
		{"port", control.FDBFilter{Port: "vnet0"}, 1},
		{"host", control.FDBFilter{Port: control.HostPort}, 1},
		{"mac and port", control.FDBFilter{MAC: vswitch.MAC{0x52, 0x54, 0, 0, 0, 0x99}, Port: "vnet0"}, 0},
	} {
		got, err := c.FDB(t.Context(), tt.filter)
		if err != nil || len(got) != tt.want {
			t.Errorf("%s: %d entries, %v, want %d", tt.name, len(got), err, tt.want)
		}
	}
	for _, tt := range []struct {
		filter control.FDBFilter
		want   string
	}{
		{control.FDBFilter{Bridge: "br9"}, "no bridge br9 in the switch, which has br0, br-lab: file does not exist"},
		{control.FDBFilter{Port: "vnet9"}, "no port vnet9 in the switch, which has vnet7, nic0, sensor, vnet0, vnet1: file does not exist"},
	} {
		_, err := c.FDB(t.Context(), tt.filter)
		if !errors.Is(err, os.ErrNotExist) || err.Error() != tt.want {
			t.Errorf("%+v: error %v, want not-exist %q", tt.filter, err, tt.want)
		}
	}
}

func TestRequestsRefused(t *testing.T) {
	src := controltest.Sample()
	broken := &controltest.Source{Err: errors.New("reading map verdicts: out of order")}
	late := &controltest.Source{Err: fmt.Errorf("waiting: %w", context.DeadlineExceeded)}
	for _, tt := range []struct {
		name, method, target string
		src                  control.Switch
		status               int
		message              string
	}{
		{"method", "POST", "/v1/status", src, 405, "POST is not allowed on /v1/status: use GET"},
		{"delete", "DELETE", "/v1/fdb", src, 405, "DELETE is not allowed on /v1/fdb: use GET"},
		{"method that changes", "GET", "/v1/pause?name=vnet0", src, 405, "GET is not allowed on /v1/pause: use POST"},
		{"pause of nothing", "POST", "/v1/pause", src, 400, "which port or bridge is meant? Give its name as name=NAME"},
		{"pause of an unknown port", "POST", "/v1/pause?name=vnet9", src, 404, "no port or bridge vnet9 in the switch, which has br-lab, br0, vnet7, nic0, sensor, vnet0, vnet1: file does not exist"},
		{"pause for no time", "POST", "/v1/pause?name=vnet0&for=long", src, 400, `reading how long to pause: want a duration like 60s, have "long"`},
		{"pause for too long", "POST", "/v1/pause?name=vnet0&for=25h", src, 400, "pausing for 25h0m0s: want 1s to 24h0m0s"},
		{"pause that fails", "POST", "/v1/resume?name=vnet0", broken, 500, "reading map verdicts: out of order"},
		{"path", "GET", "/v1/port", src, 404, "no path /v1/port: this daemon answers /v1/drops, /v1/fdb, /v1/hook, /v1/pause, /v1/ports, /v1/resume, /v1/stats, /v1/status"},
		{"hook read", "GET", "/v1/hook", src, 405, "GET is not allowed on /v1/hook: use POST"},
		{"hook parameter", "POST", "/v1/hook?domain=web", src, 400, `unknown parameter "domain": want one of ["driver" "object" "operation" "sub_operation" "extra"]`},
		{"hook source", "POST", "/v1/hook?driver=qemu", broken, 500, "reading map verdicts: out of order"},
		{"parameter", "GET", "/v1/fdb?brigde=br0", src, 400, `unknown parameter "brigde": want one of ["bridge" "mac" "port"]`},
		{"parameter of another path", "GET", "/v1/ports?bridge=br0", src, 400, `unknown parameter "bridge": want one of []`},
		{"parameter twice", "GET", "/v1/fdb?port=a&port=b", src, 400, `parameter "port" is given 2 times, want once`},
		{"query", "GET", "/v1/fdb?mac=%zz", src, 400, `reading query: invalid URL escape "%zz"`},
		{"mac", "GET", "/v1/fdb?mac=52:54", src, 400, "parsing MAC address: address 52:54: invalid MAC address"},
		{"mac of 8 bytes", "GET", "/v1/fdb?mac=01:02:03:04:05:06:07:08", src, 400, "parsing MAC address 01:02:03:04:05:06:07:08: has 8 bytes, want 6"},
		{"source", "GET", "/v1/stats", broken, 500, "reading map verdicts: out of order"},
		{"source of a filter", "GET", "/v1/fdb?bridge=br0", broken, 500, "reading map verdicts: out of order"},
		{"source late", "GET", "/v1/ports", late, 503, "waiting: context deadline exceeded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			control.NewServer(tt.src, nil).ServeHTTP(w, httptest.NewRequest(tt.method, tt.target, nil))
			var body map[string]string
			if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
				t.Fatalf("body %q is no JSON object: %v", w.Body, err)
			}
			if d := cmp.Diff(map[string]string{"error": tt.message}, body); w.Code != tt.status || d != "" {
				t.Errorf("status %d, want %d; body (-want +got):\n%s", w.Code, tt.status, d)
			}
			if got := w.Header().Get("Content-Type"); got != "application/json" {
				t.Errorf("content type %q", got)
			}
		})
	}
}

// Programs iterate over lists; null is none.
func TestEmptyLists(t *testing.T) {
	src := &controltest.Source{
		PortsValue: []control.Port{{Name: "vnet0"}},
		StatsValue: func(int) []control.Stats { return []control.Stats{{Port: "vnet0"}} },
	}
	for target, want := range map[string]string{
		"/v1/fdb":    "[]\n",
		"/v1/drops":  "[]\n",
		"/v1/ports":  `"held":[]`,
		"/v1/stats":  `"verdicts":[]`,
		"/v1/status": `"bridges":[]`,
	} {
		w := httptest.NewRecorder()
		control.NewServer(src, nil).ServeHTTP(w, httptest.NewRequest("GET", target, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s gives %s, want %s in it", target, w.Body, want)
		}
	}
}

// discard is a response that keeps nothing.
type discard struct {
	http.ResponseWriter
	header http.Header
	bytes  int
	peak   func()
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(b []byte) (int, error) {
	d.bytes += len(b)
	d.peak()
	return len(b), nil
}

// A full FDB must not cost the daemon its text in memory as well.
func TestBigFDBIsStreamed(t *testing.T) {
	const entries = 32768
	src := &controltest.Source{}
	for i := range entries {
		seen := float64(i)
		src.FDBValue = append(src.FDBValue, control.FDBEntry{
			Bridge: "br0", MAC: vswitch.MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)},
			Port: "vnet123", Ifindex: 123, Fast: true, SeenAge: &seen,
		})
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var before, most uint64
	writes := 0
	w := &discard{header: http.Header{}, peak: func() {
		if writes++; writes%50 == 1 {
			most = max(most, heap())
		}
	}}
	before = heap()
	control.NewServer(src, nil).ServeHTTP(w, httptest.NewRequest("GET", "/v1/fdb", nil))
	if w.bytes < entries*100 {
		t.Fatalf("the answer has %d bytes, which is not the whole table", w.bytes)
	}
	// The source's own copy of 32768 entries of 96 bytes, with append's slack.
	const limit = 5 << 20
	if grown := most - min(most, before); most == 0 || grown > limit {
		t.Errorf("the answer of %d bytes took %d bytes of memory, want at most %d", w.bytes, grown, limit)
	}
	runtime.KeepAlive(src)
}
