// Tapswitchd is the host's daemon: it keeps the datapath in step with the Linux
// bridges. Without any configuration it serves every bridge that has a tap.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/cmd/tapswitchd/config"
	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/bridge"
	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/policy"
)

// version is set when a release is built.
var version = "dev"

// The exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	o, err := parseFlags(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(exitUsage)
	case o.version:
		fmt.Println("tapswitchd", version)
		return
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "tapswitchd:", err)
		os.Exit(exitFailed)
	}
}

// options are what the command line says.
type options struct {
	config     string
	pins       string
	keep       bool
	mountBPFFS bool
	version    bool
}

func parseFlags(args []string) (o options, err error) {
	f := flag.NewFlagSet("tapswitchd", flag.ContinueOnError)
	f.StringVar(&o.config, "config", "", "configuration `file` (default "+config.DefaultPath+", if it is there)")
	f.StringVar(&o.pins, "pins", hostbpf.DefaultPinDir, "`directory` in a BPF file system for what outlives the daemon")
	f.BoolVar(&o.keep, "keep", false, "leave the datapath in place at a clean stop, for the next daemon to adopt")
	f.BoolVar(&o.mountBPFFS, "mount-bpffs", false, "mount a BPF file system for -pins if there is none")
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		err := fmt.Errorf("unknown argument %q: tapswitchd takes flags alone, see tapswitchd -h", f.Arg(0))
		fmt.Fprintln(f.Output(), err)
		return o, err
	}
	return o, nil
}

// run wires the daemon, and undoes what it made when it is told to stop.
func run(o options) (err error) {
	c, err := config.Load(o.config)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: c.Log}))
	// The FDB's garbage from a look is small and rare: collecting it early costs
	// little, and keeps the daemon small beside hundreds of guests.
	debug.SetGCPercent(30)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()

	for _, w := range kernelWarnings(uname()) {
		log.Warn(w)
	}
	if o.mountBPFFS {
		if err := hostbpf.MountBPFFS(o.pins); err != nil {
			return err
		}
	}
	dp, err := hostbpf.Open(hostbpf.Options{PinDir: o.pins})
	if err != nil {
		return err
	}
	// A start that fails leaves what it found: nothing, or a datapath to adopt.
	keep := dp.Adopted()
	defer func() { err = errors.Join(err, dp.Close(keep)) }()
	dp.Choose(hostbpf.Choice{BulkFrame: c.BulkFrame, BulkIdle: c.BulkIdle})
	dp.ShowTags(c.ShowTags, func(device string, offloads []string) {
		log.Info("switched off what hides VLAN tags from XDP; a clean stop puts it back", "device", device, "offloads", offloads)
	})
	if err := dp.AttachLossCounters(); err != nil {
		log.Warn("frames lost after their verdict are not counted", "error", err)
	}
	mirror, err := bridge.Open(bridge.Options{Uplinks: c.Uplinks, PerPort: c.FDBPerPort, PerUplink: hostbpf.FDBCapacity})
	if err != nil {
		return err
	}
	defer mirror.Close()
	for _, name := range c.Uplinks {
		if !hasPort(mirror, name) {
			log.Warn("an uplink in the configuration is not a port of any bridge yet", "uplink", name)
		}
	}

	s := newService(log, dp, mirror, c.Lease)
	s.rules = policy.NewReader(policy.Options{AcceptBypass: c.AcceptBypass})
	s.xdp = c.XDP
	s.promote = map[vswitch.MAC]bool{}
	for _, mac := range c.Promote {
		s.promote[mac] = true
	}
	if c.Libvirt != config.LibvirtOff {
		target, err := libvirt.ParseTarget(c.Libvirt)
		if err != nil {
			return err
		}
		s.domains.watcher = libvirt.NewWatcher(target, log)
	}
	s.ready = func() {
		log.Info("ready", "version", version, "pins", dp.PinDir(), "adopted", dp.Adopted(), "ports", len(s.plan.Ports))
		daemon.SdNotify(false, daemon.SdNotifyReady)
	}
	if interval, err := daemon.SdWatchdogEnabled(false); err != nil {
		log.Warn("ignoring systemd's watchdog", "error", err)
	} else if interval > 0 {
		s.alive = func() { daemon.SdNotify(false, daemon.SdNotifyWatchdog) }
	}
	tasks, ctx := errgroup.WithContext(ctx)
	if err := serve(ctx, tasks, c, source{s}); err != nil {
		return err
	}
	keep = o.keep
	tasks.Go(func() error { return s.run(ctx) })
	if w := s.domains.watcher; w != nil {
		tasks.Go(func() error { return w.Run(ctx) })
	}
	err = tasks.Wait()
	daemon.SdNotify(false, daemon.SdNotifyStopping)
	log.Info("stopped", "kept", o.keep)
	return err
}

func hasPort(m *bridge.Mirror, name string) bool {
	for _, p := range m.Ports {
		if p.Name == name {
			return true
		}
	}
	return false
}

// serve starts to answer on the control socket, and on the metrics' address if
// there is one.
func serve(ctx context.Context, tasks *errgroup.Group, c config.Config, src control.Switch) error {
	registry := control.NewRegistry(src)
	l, err := control.Listen(c.Socket)
	if err != nil {
		return err
	}
	if c.Metrics != "" {
		m, err := net.Listen("tcp", c.Metrics)
		if err != nil {
			return errors.Join(fmt.Errorf("listening for metrics on %s: %w", c.Metrics, err), l.Close())
		}
		tasks.Go(func() error { return control.Serve(ctx, m, control.NewMetricsHandler(registry)) })
	}
	tasks.Go(func() error { return control.Serve(ctx, l, control.NewServer(src, registry)) })
	return nil
}
