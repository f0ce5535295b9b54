package libvirt

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"go.uber.org/goleak"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/libvirtd"
)

// startLibvirtd starts a libvirtd for a test.
func startLibvirtd(t *testing.T) *libvirtd.Daemon {
	t.Helper()
	n, err := lab.NewNode("host")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	d, err := libvirtd.Start(t.Context(), n, libvirtd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// watch runs a watcher until the end of the test, after which nothing may be left
// of it.
func watch(t *testing.T, target string) *Watcher {
	t.Helper()
	parsed, err := ParseTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	w := NewWatcher(parsed, slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t, before)
	})
	return w
}

// await waits until the watcher knows something.
func await(t *testing.T, w *Watcher, what string, known func(State) bool) {
	t.Helper()
	timeout := time.NewTimer(20 * time.Second)
	defer timeout.Stop()
	for !known(w.State()) {
		select {
		case <-w.Changed():
		case <-timeout.C:
			t.Fatalf("waited until %s; the state is %+v", what, w.State())
		}
	}
}

func connected(s State) bool { return s.Connected }

// connectTest connects to libvirt's test driver, which has a domain "test" that
// runs.
func connectTest(t *testing.T, d *libvirtd.Daemon) *libvirt.Libvirt {
	t.Helper()
	c, err := d.Connect(libvirt.TestDefault)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Disconnect() })
	return c
}

func testTarget(d *libvirtd.Daemon) string { return "test:///default?socket=" + d.Socket }

// domain gives the reading of a domain by its name.
func domain(s State, name string) (Reading, bool) {
	for _, r := range s.Domains {
		if r.Name == name {
			return r, true
		}
	}
	return Reading{}, false
}

func TestWatcherFollowsDomain(t *testing.T) {
	d := startLibvirtd(t)
	c := connectTest(t, d)
	w := watch(t, testTarget(d))
	await(t, w, "it knows the driver's own domain", func(s State) bool {
		r, ok := domain(s, "test")
		return s.Connected && ok && r.Running && !r.Paused
	})
	dom, err := c.DomainLookupByName("test")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name  string
		do    func(libvirt.Domain) error
		known func(r Reading, ok bool) bool
	}{
		{"paused", c.DomainSuspend, func(r Reading, ok bool) bool { return ok && r.Paused }},
		{"resumed", c.DomainResume, func(r Reading, ok bool) bool { return ok && !r.Paused }},
		{"destroyed", c.DomainDestroy, func(_ Reading, ok bool) bool { return !ok }},
		{"started", c.DomainCreate, func(r Reading, ok bool) bool { return ok && r.UUID == uuidText(dom.UUID) }},
	} {
		if err := step.do(dom); err != nil {
			t.Fatal(step.name, err)
		}
		await(t, w, "the domain is "+step.name, func(s State) bool { return step.known(domain(s, "test")) })
	}
}

// Many domains that start at once are all known, whatever is lost of their events.
func TestL12ManyDomainsStartAtOnce(t *testing.T) {
	d := startLibvirtd(t)
	c := connectTest(t, d)
	w := watch(t, testTarget(d))
	const many = 20
	want := []string{"test"}
	failed := make(chan error)
	for i := range many {
		name := fmt.Sprint("many", i)
		want = append(want, name)
		go func() {
			_, err := c.DomainCreateXML(testDomain(name), 0)
			failed <- err
		}()
	}
	for range many {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	slices.Sort(want)
	await(t, w, "all are known", func(s State) bool { return slices.Equal(names(s), want) })
}

func testDomain(name string) string {
	return fmt.Sprintf("<domain type='test'><name>%s</name><memory>1024</memory><os><type>hvm</type></os></domain>", name)
}

func names(s State) []string {
	var all []string
	for r := range maps.Values(s.Domains) {
		all = append(all, r.Name)
	}
	slices.Sort(all)
	return all
}

// After each restart of the daemon events come again.
func TestL4EventsAfterReconnect(t *testing.T) {
	d := startLibvirtd(t)
	w := watch(t, testTarget(d))
	await(t, w, "it is connected", connected)
	for range 3 {
		known := names(w.State())
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		await(t, w, "the connection is lost", func(s State) bool { return !s.Connected && s.Err != nil })
		if now := names(w.State()); !slices.Equal(now, known) {
			t.Errorf("without the daemon the domains are %v, were %v", now, known)
		}
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		await(t, w, "it is connected again", connected)
		c := connectTest(t, d)
		dom, err := c.DomainLookupByName("test")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.DomainSuspend(dom); err != nil {
			t.Fatal(err)
		}
		await(t, w, "it hears of events", func(s State) bool { r, _ := domain(s, "test"); return r.Paused })
	}
}

// Nobody reads what the watcher tells, and it still follows.
func TestL5SlowConsumer(t *testing.T) {
	d := startLibvirtd(t)
	c := connectTest(t, d)
	w := watch(t, testTarget(d))
	await(t, w, "it is connected", connected)
	dom, err := c.DomainLookupByName("test")
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := c.DomainSuspend(dom); err != nil {
			t.Fatal(err)
		}
		if err := c.DomainResume(dom); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.DomainSuspend(dom); err != nil {
		t.Fatal(err)
	}
	await(t, w, "it knows how the domain is at the end", func(s State) bool { r, _ := domain(s, "test"); return r.Paused })
}

// A daemon that hangs holds up only those who wait for it.
func TestWatcherOutlivesHungDaemon(t *testing.T) {
	d := startLibvirtd(t)
	w := watch(t, testTarget(d))
	await(t, w, "it is connected", connected)
	if err := d.Suspend(); err != nil {
		t.Fatal(err)
	}
	w.Look()
	if s := w.State(); !s.Connected || len(s.Domains) != 1 {
		t.Errorf("beside a hung daemon the state is %+v", s)
	}
	if err := d.Resume(); err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	w.Look()
	await(t, w, "it has asked again", func(s State) bool { r, _ := domain(s, "test"); return r.Asked.After(asked) })
	if err := d.Suspend(); err != nil {
		t.Fatal(err)
	}
	w.Look() // and the test's end waits for nobody
}

func TestWatcherWithoutDaemon(t *testing.T) {
	w := watch(t, "/run/there-is-none")
	await(t, w, "it knows that there is none", func(s State) bool {
		return !s.Connected && s.Err != nil && s.Err.Error() == "no daemon has a socket at /run/there-is-none: file does not exist"
	})
}

// A NIC is plugged in, no event tells of it, and the port that the kernel tells of
// makes the watcher look.
func TestL6EventNeverArrives(t *testing.T) {
	all := events
	t.Cleanup(func() { events = all })
	events = events[:1] // lifecycle alone
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	d, err := libvirtd.Start(t.Context(), l.Host, libvirtd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	c, err := d.Connect(libvirt.QEMUSystem)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Disconnect() })
	w := watch(t, d.Socket)
	nic := func(mac string) string { return libvirtd.BridgeInterface(mac, lab.BridgeDev, "") }
	dom, err := c.DomainCreateXML(libvirtd.Guest{Name: "a", Interfaces: []string{nic("52:54:00:00:00:01")}}.XML(), 0)
	if err != nil {
		t.Fatal(err)
	}
	nics := func(n int) func(State) bool {
		return func(s State) bool { r, _ := domain(s, "a"); return len(r.Interfaces) == n }
	}
	await(t, w, "the guest is known", nics(1))
	// An event of the start that is still under way can tell of the first at most.
	for n := byte(2); n <= 4; n++ {
		if err := c.DomainAttachDeviceFlags(dom, nic(guestMAC(n).String()), uint32(libvirt.DomainDeviceModifyLive)); err != nil {
			t.Fatal(err)
		}
		w.Look()
		await(t, w, fmt.Sprintf("NIC %d is known", n), nics(int(n)))
		r, _ := domain(w.State(), "a")
		if got := r.Interfaces[n-1]; got.Target != fmt.Sprint("vnet", n-1) || got.MAC != guestMAC(n) {
			t.Errorf("NIC %d is %+v", n, got)
		}
	}
}
