package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// daemonPath is the tapswitchd that the tests run.
var daemonPath string

type testMain struct{ m *testing.M }

// Run builds the daemon first, so that the tests run the same tree's.
func (t testMain) Run() int {
	dir, err := os.MkdirTemp("", "tapswitchd")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	daemonPath = filepath.Join(dir, "tapswitchd")
	if out, err := exec.Command("go", "build", "-o", daemonPath, ".").CombinedOutput(); err != nil {
		panic(string(out))
	}
	return t.m.Run()
}

func TestMain(m *testing.M) { lab.Main(testMain{m}) }

// labConfig makes a lab's veth an uplink, as its NIC.
const labConfig = `uplinks = ["nic0"]`

// A host is a lab whose host runs a daemon.
type host struct {
	*lab.Lab
	*lab.Daemon
	api *control.Client
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// newHost builds a lab and starts a daemon on its host.
func newHost(t *testing.T, o lab.Options, args ...string) *host {
	t.Helper()
	l, err := lab.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	h := &host{Lab: l}
	h.start(t, args...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", h.Log())
		}
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// start starts the daemon, anew if there was one.
func (h *host) start(t *testing.T, args ...string) {
	t.Helper()
	d, err := h.Host.StartDaemon(within(t, 20*time.Second), lab.DaemonOptions{
		Path: daemonPath, Config: labConfig, Name: t.Name(), Args: args,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.Daemon, h.api = d, control.Dial(d.Socket)
	t.Cleanup(h.api.Close)
}

// count gives the frames from a port that met a verdict.
func (h *host) count(t *testing.T, port string, v vswitch.Verdict) uint64 {
	t.Helper()
	stats, err := h.api.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stats {
		for _, c := range s.Verdicts {
			if s.Port == port && c.Verdict == v {
				return c.Frames
			}
		}
	}
	return 0
}

func TestReachability(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2})
	ctx := within(t, time.Minute)
	ports, err := h.api.Ports(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"nic0": "xdp native", "vnet0": "tcx", "vnet1": "tcx"}
	for _, p := range ports {
		if p.State != control.StateFast || p.Hook != want[p.Name] {
			t.Errorf("%s is %s by %q: %v", p.Name, p.State, p.Hook, p.Held)
		}
		delete(want, p.Name)
	}
	if len(want) > 0 {
		t.Errorf("no ports %v", want)
	}
	a, b := h.Guests[0], h.Guests[1]
	for _, pair := range []struct {
		from, to *lab.Node
	}{{h.Wire, a.Node}, {a.Node, h.Wire}, {a.Node, b.Node}, {a.Node, h.Host}, {h.Wire, h.Host}} {
		for _, v6 := range []bool{false, true} {
			addr, err := pair.to.Addr(v6)
			if err != nil {
				t.Fatal(err)
			}
			if err := lab.Ping(ctx, pair.from, addr, 5); err != nil {
				t.Errorf("%s to %s: %v", pair.from.Name(), addr, err)
			}
		}
	}
	for _, port := range []string{"nic0", "vnet0", "vnet1"} {
		if n := h.count(t, port, vswitch.Redirected); n == 0 {
			t.Errorf("no frame from %s was redirected", port)
		}
	}
	for _, way := range []struct{ client, server *lab.Node }{{h.Wire, a.Node}, {a.Node, h.Wire}, {a.Node, b.Node}} {
		addr, err := way.server.Addr(false)
		if err != nil {
			t.Fatal(err)
		}
		r, err := lab.Fetch(ctx, way.client, way.server, addr, 20<<20)
		if err != nil {
			t.Errorf("%s from %s: %v", way.client.Name(), way.server.Name(), err)
		}
		t.Logf("%s from %s: %.0f Mb/s", way.client.Name(), way.server.Name(), r.MbPerSecond())
	}
}

func TestNothingIsLeft(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2})
	if err := h.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(h.Pins); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", h.Pins, err)
	}
	if _, err := os.Stat(h.Socket); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", h.Socket, err)
	}
	out, err := h.Host.Command(t.Context(), "bpftool", "net").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if bytes.Contains(out, []byte("rx")) {
		t.Errorf("programs are still attached:\n%s", out)
	}
}
