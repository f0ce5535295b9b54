package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/libvirtd"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// followWithin is how long the ports may take to follow a guest: QEMU starts in a
// second or two, and libvirt tells of a guest when it runs.
const followWithin = 30 * time.Second

// A LibvirtStep is something that befell a guest, and the ports when they had followed.
type LibvirtStep struct {
	What  string         `json:"what"`
	Took  float64        `json:"took_s"` // with what libvirt and QEMU took
	Ports []control.Port `json:"ports"`
}

// RunLibvirt lets guests of a private libvirtd come, change and go beside a daemon, and
// tells each step by show when the ports have followed. It is to be run after
// lab.Isolate, and needs libvirtd with its QEMU driver, and QEMU. What does not follow
// within 30 s is its error.
func RunLibvirt(ctx context.Context, o Options, show func(LibvirtStep) error) (err error) {
	p := newProgress(o.Progress)
	p.step("building a host with a bridge and a wire")
	l, err := lab.New(lab.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	p.step("starting libvirtd")
	virt, err := libvirtd.Start(ctx, l.Host, libvirtd.Options{})
	if err != nil {
		return fmt.Errorf("%w (it needs libvirtd with its QEMU driver, and qemu-system-x86_64)", err)
	}
	defer func() { err = errors.Join(err, virt.Close()) }()
	conn, err := virt.Connect(libvirt.QEMUSystem)
	if err != nil {
		return err
	}
	p.step("starting tapswitchd")
	d, err := l.Host.StartDaemon(ctx, lab.DaemonOptions{Path: o.Daemon, Config: fmt.Sprintf("%s\nlibvirt = %q", lab.NICConfig, virt.Socket)})
	if err != nil {
		return fmt.Errorf("starting the daemon %s: %w", o.Daemon, err)
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	s := libvirtScenario{conn: conn, api: control.Dial(d.Socket), domains: map[string]libvirt.Domain{}}
	defer s.api.Close()
	for _, step := range s.steps() {
		p.step("%s", step.what)
		began := time.Now()
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		ports, err := s.follow(ctx, step.want)
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		if err := show(LibvirtStep{What: step.what, Took: time.Since(began).Seconds(), Ports: ports}); err != nil {
			return err
		}
	}
	return nil
}

type libvirtScenario struct {
	conn    *libvirt.Libvirt
	api     *control.Client
	domains map[string]libvirt.Domain
}

type libvirtStep struct {
	what string
	do   func() error
	// want are the guests' ports that there are afterwards, by domain and NIC, with
	// whether the guest is paused. All are fast.
	want map[string]bool
}

func (s *libvirtScenario) steps() []libvirtStep {
	nic := func(n int) string {
		return libvirtd.BridgeInterface(fmt.Sprintf("52:54:00:00:02:%02x", n), lab.BridgeDev, "")
	}
	start := func(name string, n int) error {
		d, err := s.conn.DomainCreateXML(libvirtd.Guest{Name: name, Interfaces: []string{nic(n)}}.XML(), 0)
		s.domains[name] = d
		return err
	}
	const live = uint32(libvirt.DomainDeviceModifyLive)
	return []libvirtStep{
		{"two guests start", func() error { return errors.Join(start("web", 1), start("db", 2)) }, map[string]bool{"web net0": false, "db net0": false}},
		{"web gets a second NIC", func() error { return s.conn.DomainAttachDeviceFlags(s.domains["web"], nic(3), live) }, map[string]bool{"web net0": false, "web net1": false, "db net0": false}},
		{"web is paused", func() error { return s.conn.DomainSuspend(s.domains["web"]) }, map[string]bool{"web net0": true, "web net1": true, "db net0": false}},
		{"web goes on", func() error { return s.conn.DomainResume(s.domains["web"]) }, map[string]bool{"web net0": false, "web net1": false, "db net0": false}},
		{"web is destroyed", func() error { return s.conn.DomainDestroy(s.domains["web"]) }, map[string]bool{"db net0": false}},
		{"db is destroyed", func() error { return s.conn.DomainDestroy(s.domains["db"]) }, nil},
	}
}

// follow waits until the daemon has these guests' ports, and no others.
func (s *libvirtScenario) follow(ctx context.Context, want map[string]bool) (ports []control.Port, err error) {
	ctx, cancel := context.WithTimeout(ctx, followWithin)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		if ports, err = s.api.Ports(ctx); err != nil {
			return nil, err
		}
		if haveFollowed(ports, want) {
			return ports, nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("the ports have not followed: %+v: %w", ports, ctx.Err())
		}
	}
}

// haveFollowed says whether the guests' ports are those that are wanted, and fast.
func haveFollowed(ports []control.Port, want map[string]bool) bool {
	found := 0
	for _, p := range ports {
		if p.Name == lab.NIC {
			continue
		}
		if p.Guest == nil {
			return false
		}
		paused, wanted := want[p.Guest.Domain+" "+p.Guest.Alias]
		if !wanted || paused != p.Guest.Paused || p.State != control.StateFast {
			return false
		}
		found++
	}
	return found == len(want)
}
