package oracle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// lookEvery is how often the datapath is looked at while waiting for it: nothing
// tells when a map has changed.
const lookEvery = 200 * time.Microsecond

// A fastPath is the daemon that accelerates a host.
type fastPath struct {
	*host
	path   string
	log    io.Writer
	daemon *lab.Daemon
	api    *control.Client
	view   *pinned
	counts map[int]verdicts // by port number, since the beginning
	// before are the counts of each port when its frames began to be counted.
	before map[int]verdicts
	// slowest is how long the datapath was waited for at most, and for what.
	slowest     time.Duration
	slowestWhat string
}

// verdicts counts frames by verdict.
type verdicts map[vswitch.Verdict]uint64

func startFastPath(ctx context.Context, h *host, path string, log io.Writer) (*fastPath, error) {
	f := &fastPath{host: h, path: path, log: log, counts: map[int]verdicts{}, before: map[int]verdicts{}}
	if err := f.start(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// start starts the daemon, anew if there was one.
func (f *fastPath) start(ctx context.Context) error {
	d, err := f.lab.Host.StartDaemon(ctx, lab.DaemonOptions{
		Path: f.path, Config: lab.NICConfig + "\nfdb_per_port = 40960", Name: "oracle", Log: f.log,
	})
	if err != nil {
		return err
	}
	f.daemon, f.api = d, control.Dial(d.Socket)
	if f.view == nil { // otherwise adopted, and the same maps
		f.view, err = openPinned(d.Pins)
	}
	return err
}

// kill kills the daemon, until start starts another, which adopts the datapath.
func (f *fastPath) kill() error {
	f.api.Close()
	return f.daemon.Kill()
}

// stall keeps the daemon from renewing the datapath's lease, until resume.
func (f *fastPath) stall() error  { return f.daemon.Signal(syscall.SIGSTOP) }
func (f *fastPath) resume() error { return f.daemon.Signal(syscall.SIGCONT) }

// close stops the daemon. With its log if it did not end well.
func (f *fastPath) close() error {
	f.api.Close()
	return errors.Join(f.view.close(), f.daemon.Stop())
}

// A lateError says for what the datapath was waited in vain.
type lateError struct{ what string }

func (e *lateError) Error() string { return "waiting for the datapath: " + e.what }

// await waits until check finds nothing that is still to come. The error is a *lateError
// if that does not end.
func (f *fastPath) await(check func(context.Context) (missing string, err error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.patience)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	begin, last := time.Now(), ""
	for {
		missing, err := check(ctx)
		if took := time.Since(begin); took > f.slowest && last != "" {
			f.slowest, f.slowestWhat = took, last
		}
		if err != nil && ctx.Err() == nil || err == nil && missing == "" {
			return err
		}
		last = cmp.Or(missing, last)
		select {
		case <-tick.C:
		case <-ctx.Done():
			if last == "" { // it was not even looked at
				return fmt.Errorf("waiting for the datapath: %w", ctx.Err())
			}
			return &lateError{last}
		}
	}
}

// awaitEntries waits until the datapath forwards by the bridge's table.
func (f *fastPath) awaitEntries() error {
	return f.await(func(context.Context) (string, error) { return f.missingEntries() })
}

// missingEntries says in which entries the datapath differs from the bridge's
// table.
func (f *fastPath) missingEntries() (string, error) {
	table, err := f.fdb()
	if err != nil {
		return "", err
	}
	bridge, err := f.lab.Host.Link(lab.BridgeDev)
	if err != nil {
		return "", err
	}
	own := mac(bridge.Attrs().HardwareAddr)
	want := map[fdbKey]int{}
	for key, e := range table {
		switch {
		case !f.uses(key) || key.mac.group():
		case e.State&netlink.NUD_PERMANENT != 0:
			if key.mac == own { // the host's others are as good as unknown
				want[key] = vswitch.Host
			}
		default:
			want[key] = e.LinkIndex
		}
	}
	have := f.view.entries()
	maps.DeleteFunc(have, func(key fdbKey, _ int) bool { return !f.uses(key) })
	if maps.Equal(want, have) {
		return "", nil
	}
	return "its table " + f.compareTables(want, have), nil
}

func (f *fastPath) compareTables(want, have map[fdbKey]int) string {
	name := func(ifindex int) string {
		if ifindex == vswitch.Host {
			return "the host"
		}
		return fmt.Sprintf("%s (%d)", f.device(ifindex), ifindex)
	}
	var s []string
	for m, at := range want {
		if got, ok := have[m]; !ok {
			s = append(s, fmt.Sprintf("lacks %s on %s", m, name(at)))
		} else if got != at {
			s = append(s, fmt.Sprintf("has %s on %s, not on %s", m, name(got), name(at)))
		}
	}
	for m, at := range have {
		if _, ok := want[m]; !ok {
			s = append(s, fmt.Sprintf("still has %s on %s", m, name(at)))
		}
	}
	slices.Sort(s)
	return strings.Join(s, ", ")
}

// awaitPorts waits until the daemon has the ports as they are.
func (f *fastPath) awaitPorts(states []portState) error {
	return f.await(func(ctx context.Context) (string, error) {
		ports, err := f.api.Ports(ctx)
		if err != nil {
			return "", err
		}
		for i, s := range states {
			at := slices.IndexFunc(ports, func(p control.Port) bool {
				return f.ports[i] != nil && p.Ifindex == f.ports[i].ifindex
			})
			switch {
			case !s.there && at < 0:
			case at < 0:
				return specs[i].name + " is not there", nil
			case (ports[at].State == control.StateFast) != s.fast():
				return fmt.Sprintf("%s is %s: %v", specs[i].name, ports[at].State, ports[at].Held), nil
			case ports[at].Hook == "":
				return specs[i].name + " has no hook", nil
			case f.view.isolated(ports[at].Ifindex) != s.set[isolated]:
				return fmt.Sprintf("%s is isolated: %t, not %t", specs[i].name, !s.set[isolated], s.set[isolated]), nil
			case ports[at].MTU != s.mtu:
				return fmt.Sprintf("%s has an MTU of %d, not %d", specs[i].name, ports[at].MTU, s.mtu), nil
			}
		}
		want := 0
		for _, s := range states {
			if s.there {
				want++
			}
		}
		if len(ports) != want {
			return fmt.Sprintf("there are %d ports, not %d", len(ports), want), nil
		}
		return "", nil
	})
}

// awaitVLANs waits until the datapath has the ports' VLANs.
func (f *fastPath) awaitVLANs(b *bridging) error {
	return f.await(func(context.Context) (string, error) {
		for i, want := range b.ports {
			wantTPID := b.tpid
			if !b.aware {
				want, wantTPID = membership{}, 0
			}
			if i == theBridge {
				continue
			}
			have, tpid, ok := f.view.vlansOf(f.ports[i].ifindex)
			if !ok || tpid != wantTPID || !have.equal(want) {
				return fmt.Sprintf("%s has VLANs of %#x: %v (there: %t), not of %#x: %v",
					specs[i].name, tpid, have, ok, wantTPID, want), nil
			}
		}
		return "", nil
	})
}

// read gives a port's counters.
func (f *fastPath) read(ctx context.Context, number int) (verdicts, error) {
	stats, err := f.api.Stats(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range stats {
		if s.Ifindex == f.ports[number].ifindex {
			v := verdicts{}
			for _, c := range s.Verdicts {
				v[c.Verdict] = c.Frames
			}
			return v, nil
		}
	}
	return nil, fmt.Errorf("reading the counters of %s: it has none", specs[number].name)
}

// beginCount takes a port's counters as the beginning. All frames must have
// come out.
func (f *fastPath) beginCount(ctx context.Context, number int) error {
	v, err := f.read(ctx, number)
	if err != nil {
		return err
	}
	f.before[number] = v
	f.ports[number].hooked = 0
	return nil
}

// endCount checks that the datapath has counted each of a port's frames once.
// All frames must have come out.
func (f *fastPath) endCount(ctx context.Context, number int) error {
	v, err := f.read(ctx, number)
	if err != nil {
		return err
	}
	if f.counts[number] == nil {
		f.counts[number] = verdicts{}
	}
	var sum uint64
	for verdict, frames := range v {
		n := frames - f.before[number][verdict]
		f.counts[number][verdict] += n
		sum += n
	}
	if want := f.ports[number].hooked; sum != want {
		return fmt.Errorf("%s took %d frames, and the verdicts on them are %d: %v", specs[number].name, want, sum, v)
	}
	return f.beginCount(ctx, number)
}

// lost gives an error if a frame was lost after its verdict.
func (f *fastPath) lost(ctx context.Context) error {
	drops, err := f.api.Drops(ctx)
	if err != nil {
		return err
	}
	for _, d := range drops {
		if d.Shared {
			continue // which the comparison of what comes out sees
		}
		err = errors.Join(err, fmt.Errorf("%d frames to %s were lost: %s (errno %d)", d.Frames, d.Port, d.Reason, d.Errno))
	}
	return err
}
