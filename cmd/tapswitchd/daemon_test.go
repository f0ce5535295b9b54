package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
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

const (
	labConfig = lab.NICConfig
	// shortLease is the shortest there is: the daemon looks around eight times a
	// second, and its datapath outlives it by half a second.
	shortLease = labConfig + "\n" + `lease = "500ms"`
	// longLease outlasts a test, in which the daemon is stopped.
	longLease = labConfig + "\n" + `lease = "1m"`
)

// A host is a lab whose host runs a daemon.
type host struct {
	*lab.Lab
	*lab.Daemon
	api *control.Client
	log *logEvents
	// name tells the hosts of a test with several apart.
	name string
}

// logEvents tell that the daemon has logged something: it does so whenever a
// port changes.
type logEvents struct {
	mu      sync.Mutex
	written chan struct{}
}

func (l *logEvents) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.written)
	l.written = make(chan struct{})
	return len(p), nil
}

// next gives what is closed when something is logged from now on.
func (l *logEvents) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// newHost builds a lab and starts a daemon on its host, which must leave nothing
// behind when it is stopped at the end.
func newHost(t *testing.T, l lab.Options, d lab.DaemonOptions) *host {
	t.Helper()
	h := newLab(t, l)
	h.start(t, d)
	return h
}

// newLab builds a lab for a daemon to be started.
func newLab(t *testing.T, o lab.Options) *host {
	t.Helper()
	l, err := lab.New(o)
	if o.VLANFiltering && errors.Is(err, errors.ErrUnsupported) {
		t.Skip("SKIPPED: this kernel's bridge has no VLAN filtering")
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Lab: l, log: &logEvents{written: make(chan struct{})}}
	t.Cleanup(func() {
		if h.Daemon != nil {
			if t.Failed() {
				t.Logf("the daemon's log:\n%s", h.Log())
				h.resume() // or it won't hear that it is to stop
			}
			h.stop(t)
			h.checkNothingLeft(t)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// start starts the daemon, anew if there was one.
func (h *host) start(t *testing.T, o lab.DaemonOptions) {
	t.Helper()
	if o.Path == "" {
		o.Path = daemonPath
	}
	if o.Config == "" {
		o.Config = labConfig
	}
	o.Name, o.Log = t.Name()+h.name, h.log
	d, err := h.Host.StartDaemon(within(t, 20*time.Second), o)
	if err != nil {
		t.Fatal(err)
	}
	h.Daemon, h.api = d, control.Dial(d.Socket)
	t.Cleanup(h.api.Close)
}

// stop stops the daemon if one runs.
func (h *host) stop(t *testing.T) {
	t.Helper()
	if h.Daemon == nil {
		return
	}
	if err := h.Stop(); err != nil {
		t.Error(err)
	}
}

// kill ends the daemon so that it has no time to clear anything away.
func (h *host) kill(t *testing.T) {
	t.Helper()
	if err := h.Kill(); err != nil {
		t.Fatal(err)
	}
}

// suspend stops the daemon's process, and returns when none of its threads runs.
func (h *host) suspend(t *testing.T) {
	t.Helper()
	h.Signal(unix.SIGSTOP)
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, h.PID(), &info, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
}

// resume lets a suspended daemon go on.
func (h *host) resume() { h.Signal(unix.SIGCONT) }

// stats gives the counters of a port; they are zero if there is no such port.
func (h *host) stats(t *testing.T, port string) control.Stats {
	t.Helper()
	stats, err := h.api.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stats {
		if s.Port == port {
			return s
		}
	}
	return control.Stats{}
}

// count gives the frames from a port that met a verdict.
func (h *host) count(t *testing.T, port string, v vswitch.Verdict) uint64 {
	t.Helper()
	for _, c := range h.stats(t, port).Verdicts {
		if c.Verdict == v {
			return c.Frames
		}
	}
	return 0
}

// port gives a port as the daemon has it; it is zero if there is no such port.
func (h *host) port(t *testing.T, name string) control.Port {
	t.Helper()
	ports, err := h.api.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		if p.Name == name {
			return p
		}
	}
	return control.Port{}
}

// await waits until ready is true. It looks again whenever the daemon logs
// something, as it does when a port changes.
func (h *host) await(t *testing.T, d time.Duration, what string, ready func() bool) {
	t.Helper()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for {
		changed := h.log.next()
		if ready() {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			ports, err := h.api.Ports(t.Context())
			t.Fatalf("waited %v until %s; ports are %+v (%v)", d, what, ports, err)
		}
	}
}

// awaitPort waits until a port is in a state, for a reason that has a text in it
// unless it is fast.
func (h *host) awaitPort(t *testing.T, d time.Duration, name, state, reason string) {
	t.Helper()
	h.await(t, d, fmt.Sprintf("%s is %s because %q", name, state, reason), func() bool {
		p := h.port(t, name)
		return p.State == state && (state == control.StateFast && len(p.Held) == 0 || holdText(p, reason))
	})
}

func holdText(p control.Port, text string) bool {
	for _, r := range p.Held {
		if strings.Contains(r.Text, text) {
			return true
		}
	}
	return false
}

// awaitFast waits until all these ports are fast.
func (h *host) awaitFast(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		h.awaitPort(t, 5*time.Second, name, control.StateFast, "")
	}
}

// eventually waits for what makes no event.
func eventually(t *testing.T, d time.Duration, what string, ready func() bool) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for !ready() {
		select {
		case <-again.C:
		case <-timeout.C:
			t.Fatalf("waited %v until %s", d, what)
		}
	}
}

// run runs a program on the host.
func (h *host) run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := h.Host.Command(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// ip runs iproute2's ip on the host, with its arguments as one text.
func (h *host) ip(t *testing.T, args string) {
	t.Helper()
	h.run(t, "ip", strings.Fields(args)...)
}

// bridge runs iproute2's bridge on the host, with its arguments as one text.
func (h *host) bridge(t *testing.T, args string) {
	t.Helper()
	h.run(t, "bridge", strings.Fields(args)...)
}
