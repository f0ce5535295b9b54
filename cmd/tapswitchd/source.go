package main

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

var _ control.Switch = source{}

// source shows the service by the control API.
type source struct{ *service }

// ask runs f in the service's goroutine and gives what it gives.
func ask[T any](ctx context.Context, s source, f func() (T, error)) (answer T, err error) {
	if e := s.do(ctx, func() { answer, err = f() }); e != nil {
		return answer, e
	}
	return answer, err
}

func (s source) Status(ctx context.Context) (control.Status, error) {
	return ask(ctx, s, func() (control.Status, error) {
		counters, err := s.dp.Counters()
		if err != nil {
			return control.Status{}, err
		}
		kernel := uname()
		st := control.Status{
			Version: version, PID: os.Getpid(), Started: s.started, Kernel: unix.ByteSliceToString(kernel.Release[:]), Warnings: kernelWarnings(kernel),
			Lease: s.lease.Seconds(), Renewed: s.renewed,
			FDB:      control.FDBUse{Entries: s.dp.FDBLen(), Capacity: hostbpf.FDBCapacity, Full: s.full},
			Datapath: control.Datapath{Pins: s.dp.PinDir(), Adopted: s.dp.Adopted(), BulkFlows: s.dp.BulkFlows()},
		}
		for _, n := range s.mirror.Refused() {
			st.FDB.Refused += n
		}
		st.Libvirt = s.domains.status()
		bridges := map[int]*control.Bridge{}
		for ifindex, b := range s.plan.Bridges {
			bridges[ifindex] = &control.Bridge{Name: b.Name, Ifindex: ifindex, Up: b.Up}
		}
		for _, p := range s.plan.Ports {
			b := bridges[p.Bridge]
			b.Ports++
			if p.State() == control.StateFast {
				b.Fast++
			} else {
				b.Held++
			}
		}
		for key := range s.dp.FDB() {
			if b := bridges[key.Bridge]; b != nil {
				b.FDBEntries++
			}
		}
		for _, b := range bridges {
			st.Bridges = append(st.Bridges, *b)
		}
		slices.SortFunc(st.Bridges, func(a, b control.Bridge) int { return cmp.Compare(a.Name, b.Name) })
		var flushes, flushed uint64
		for _, c := range counters {
			// What XDP passes comes to the tc hook, where it is counted as merged.
			first, merged := byHook(c)
			st.Totals.Redirected += first[vswitch.Redirected] + merged[vswitch.Redirected]
			last := merged
			if merged == nil {
				last = first
			}
			for v, n := range last {
				if v != vswitch.Redirected {
					st.Totals.Passed += n
				}
			}
			flushes, flushed = flushes+c.Flushes, flushed+c.Flushed
		}
		if flushes > 0 {
			st.Datapath.FramesPerFlush = float64(flushed) / float64(flushes)
		}
		losses, err := s.dp.Losses()
		for _, l := range losses {
			st.Totals.Lost += l.Frames
		}
		return st, err
	})
}

// byHook gives the verdicts at the first hook that a port's frames meet, and at
// the tc hook if that is another; nil otherwise.
func byHook(c hostbpf.PortCounters) (first, merged map[vswitch.Verdict]uint64) {
	if xdp := c.Verdicts[vswitch.HookXDP]; len(xdp) > 0 {
		return xdp, c.Verdicts[vswitch.HookTC]
	}
	return c.Verdicts[vswitch.HookTC], nil
}

func (s source) Ports(ctx context.Context) ([]control.Port, error) {
	return ask(ctx, s, func() ([]control.Port, error) {
		var ports []control.Port
		refused := s.mirror.Refused()
		for _, p := range s.sortedPorts() {
			ports = append(ports, control.Port{
				Name: p.Name, Ifindex: p.Ifindex, Bridge: s.plan.Bridges[p.Bridge].Name, BridgeIfindex: p.Bridge,
				Role: p.Role, Kind: p.Kind, MAC: p.MAC, MTU: p.MTU,
				State: p.State(), Held: p.Held, Hook: strings.Join(s.dp.Hooks(p.Ifindex), " + "),
				FDBRefused: refused[p.Ifindex],
				Guest:      s.domains.guest(p.Ifindex),
			})
		}
		return ports, nil
	})
}

// sortedPorts gives the ports by bridge and name.
func (s source) sortedPorts() []vswitch.PlannedPort {
	var ports []vswitch.PlannedPort
	for _, p := range s.plan.Ports {
		ports = append(ports, p)
	}
	slices.SortFunc(ports, func(a, b vswitch.PlannedPort) int {
		return cmp.Or(
			cmp.Compare(s.plan.Bridges[a.Bridge].Name, s.plan.Bridges[b.Bridge].Name),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return ports
}

// FDB reads the bridges' tables again, because the kernel tells ages only then.
func (s source) FDB(ctx context.Context, filter control.FDBFilter) ([]control.FDBEntry, error) {
	return ask(ctx, s, func() ([]control.FDBEntry, error) {
		change, err := s.mirror.Resync()
		if s.follow(change, err); err != nil {
			return nil, err
		}
		// A full table is large: what is made of it is as small as can be.
		var entries []control.FDBEntry
		if filter == (control.FDBFilter{}) {
			entries = make([]control.FDBEntry, 0, len(s.mirror.FDB))
		}
		now := time.Now()
		for key, e := range s.mirror.FDB {
			br, ok := s.plan.Bridges[key.Bridge]
			if !ok {
				continue
			}
			shown := control.FDBEntry{
				Bridge: br.Name, VLAN: key.VLAN, MAC: key.MAC, Ifindex: e.Destination(), Port: control.HostPort,
				Origin: e.Origin, KernelAge: now.Sub(e.Updated).Seconds(),
			}
			if shown.Ifindex != vswitch.Host {
				shown.Port = s.mirror.Ports[e.Port].Name
			}
			if !filter.Match(shown) {
				continue
			}
			if ago, ok := s.dp.Seen(key); ok {
				seconds := ago.Seconds()
				shown.SeenAge = &seconds
			}
			entries = append(entries, shown)
		}
		slices.SortFunc(entries, compareEntries)
		for key := range s.dp.FDB() {
			held := control.FDBEntry{Bridge: s.plan.Bridges[key.Bridge].Name, VLAN: key.VLAN, MAC: key.MAC}
			if i, ok := slices.BinarySearchFunc(entries, held, compareEntries); ok {
				entries[i].Fast = true
			}
		}
		return entries, nil
	})
}

func compareEntries(a, b control.FDBEntry) int {
	return cmp.Or(
		cmp.Compare(a.Bridge, b.Bridge), cmp.Compare(a.VLAN, b.VLAN), slices.Compare(a.MAC[:], b.MAC[:]),
	)
}

func (s source) Drops(ctx context.Context) ([]control.Drop, error) {
	return ask(ctx, s, func() ([]control.Drop, error) {
		losses, err := s.dp.Losses()
		if err != nil {
			return nil, err
		}
		var drops []control.Drop
		for _, l := range losses {
			name := s.mirror.Ports[l.Ifindex].Name
			drops = append(drops, control.NewDrop(name, l.Ifindex, l.Errno, l.Frames))
		}
		behind, err := s.deviceDrops()
		if err != nil {
			return nil, err
		}
		drops = append(drops, behind...)
		slices.SortFunc(drops, func(a, b control.Drop) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Ifindex, b.Ifindex), cmp.Compare(a.Errno, b.Errno), cmp.Compare(a.Reason, b.Reason))
		})
		return drops, nil
	})
}

func (s source) Stats(ctx context.Context) ([]control.Stats, error) {
	return ask(ctx, s, func() ([]control.Stats, error) {
		counters, err := s.dp.Counters()
		if err != nil {
			return nil, err
		}
		var stats []control.Stats
		for _, p := range s.sortedPorts() {
			c := counters[p.Ifindex]
			first, merged := byHook(c)
			stats = append(stats, control.Stats{
				Port: p.Name, Ifindex: p.Ifindex, Bridge: s.plan.Bridges[p.Bridge].Name, Role: p.Role,
				Verdicts: control.NewVerdictCounts(func(v vswitch.Verdict) uint64 { return first[v] }),
				Merged:   mergedCounts(merged),
				Flushes:  c.Flushes, FlushedFrames: c.Flushed,
			})
		}
		unclaimed, err := s.dp.Unclaimed()
		if err != nil {
			return nil, err
		}
		return append(stats, control.NoPort(unclaimed)), nil
	})
}

func mergedCounts(merged map[vswitch.Verdict]uint64) []control.VerdictCount {
	if merged == nil {
		return nil
	}
	return control.NewVerdictCounts(func(v vswitch.Verdict) uint64 { return merged[v] })
}
