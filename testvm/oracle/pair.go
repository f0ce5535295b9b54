package oracle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// Options say what to compare.
type Options struct {
	Daemon string // path of the tapswitchd
	// Seed determines the frames and the changes between them.
	Seed   uint64
	Frames int
	// Snooping has the bridges look for members of multicast groups.
	Snooping bool
	// Jumbo gives the uplink an MTU of 9000, with which the fast path takes frames
	// from a veth after the kernel has made an skb of them, not by XDP.
	Jumbo bool
	// Log receives the daemon's log.
	Log io.Writer
}

// vethXDP is the longest MTU with which the fast path uses XDP on a veth.
const vethXDP = 3500

func (o Options) uplinkMTU() int {
	if o.Jumbo {
		return 9000
	}
	return vethXDP
}

// A Report says what was compared.
type Report struct {
	Frames  int
	Out     int            // frames that came out of the plain host
	Kinds   map[string]int // frames by kind
	Changes map[string]int
	// Verdicts are those on the frames and on the oracle's own marks.
	Verdicts map[vswitch.Verdict]uint64
	// Returned counts entries that the daemon brought back, because it refreshed
	// them in the moment in which they were deleted.
	Returned int
	// Settling is how long the datapath was waited for, and Longest at most.
	Settling, Longest time.Duration
	Elapsed           time.Duration
}

// Redirected is the share of frames that went by the fast path.
func (r *Report) Redirected() float64 {
	var all uint64
	for _, n := range r.Verdicts {
		all += n
	}
	return float64(r.Verdicts[vswitch.Redirected]) / float64(max(all, 1))
}

func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d frames in, %d out, %.0f%% redirected, %.1fs, of which %.1fs waiting for the datapath (%v at most), %d entries returned",
		r.Frames, r.Out, 100*r.Redirected(), r.Elapsed.Seconds(), r.Settling.Seconds(), r.Longest.Round(time.Millisecond), r.Returned)
	for _, v := range vswitch.Verdicts() {
		if r.Verdicts[v] > 0 {
			fmt.Fprintf(&b, "\n%12d %s", r.Verdicts[v], v)
		}
	}
	for _, counts := range []map[string]int{r.Kinds, r.Changes} {
		b.WriteString("\n")
		for i, name := range slices.Sorted(maps.Keys(counts)) {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s %d", name, counts[name])
		}
	}
	return b.String()
}

// A pair is the two hosts.
type pair struct {
	plain *host
	fast  *fastPath
	net   *network
	gen   *generator
	// uncounted are the ports whose frames the datapath may not see yet.
	uncounted map[int]bool
	unpin     func()
	journal   []entry // since the last comparison
	report    Report
}

// An entry of the journal is a frame that was sent, or a change.
type entry struct {
	frame *frame
	what  string
}

// Run compares the two ways of a bridge. An error that is a *Difference says
// that they differ.
func Run(ctx context.Context, o Options) (r Report, err error) {
	begin := time.Now()
	p, err := newPair(ctx, o)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.run(ctx, o.Frames); err != nil {
		return Report{}, fmt.Errorf("after %d frames: %w", p.report.Frames, err)
	}
	for _, counts := range p.fast.counts {
		for v, n := range counts {
			p.report.Verdicts[v] += n
		}
	}
	p.report.Elapsed = time.Since(begin)
	return p.report, nil
}

// newPair makes two equal hosts. The calling goroutine stays on one CPU until
// the pair is closed: frames that go into one device from two CPUs may overtake
// each other.
func newPair(ctx context.Context, o Options) (*pair, error) {
	p := &pair{
		net: newNetwork(o.uplinkMTU()), uncounted: map[int]bool{}, unpin: pin(),
		report: Report{Kinds: map[string]int{}, Changes: map[string]int{}, Verdicts: map[vswitch.Verdict]uint64{}},
	}
	p.gen = &generator{Rand: rand.New(rand.NewPCG(o.Seed, 0)), network: p.net, snooping: o.Snooping}
	if err := p.open(ctx, o); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// pin keeps the calling goroutine on one CPU until it is undone.
func pin() (undo func()) {
	var all, first unix.CPUSet
	runtime.LockOSThread()
	if unix.SchedGetaffinity(0, &all) != nil {
		return runtime.UnlockOSThread
	}
	for cpu := 0; first.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			first.Set(cpu)
		}
	}
	if unix.SchedSetaffinity(0, &first) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		unix.SchedSetaffinity(0, &all)
		runtime.UnlockOSThread()
	}
}

func (p *pair) open(ctx context.Context, o Options) (err error) {
	if p.plain, err = newHost("plain", o); err != nil {
		return err
	}
	h, err := newHost("fast", o)
	if err != nil {
		return err
	}
	if p.fast, err = startFastPath(ctx, h, o.Daemon, o.Log); err != nil {
		return errors.Join(err, h.close())
	}
	// A veth that gets an XDP program gets GRO with it. It would merge frames on
	// one host alone, and tell guests that it has checked their checksums.
	if err := p.both(func(h *host) error { return h.lab.Host.SetOffload(lab.NIC, lab.GRO, false) }); err != nil {
		return err
	}
	for i := range specs {
		p.uncounted[i] = true
		for range stationsPerPort {
			p.net.add(p.gen, &station{mac: p.gen.randomMAC(), port: i})
		}
	}
	if err := p.both(func(h *host) error { return h.barrier(p.net.reach) }); err != nil {
		return err
	}
	// What the hosts said while they were made.
	if _, err := p.take(); err != nil {
		return err
	}
	if err := p.both((*host).flush); err != nil {
		return err
	}
	return p.settle(ctx)
}

func (p *pair) close() (err error) {
	if p.fast != nil {
		err = errors.Join(p.fast.close(), p.fast.host.close())
	}
	if p.plain != nil {
		err = errors.Join(err, p.plain.close())
	}
	p.unpin()
	return err
}

const (
	batchFrames = 200 // at most; a veth with XDP takes 256 at a time
	steadyPhase = 100 // frames while the daemon is away
)

func (p *pair) run(ctx context.Context, frames int) error {
	restartAt := frames / 2
	for p.report.Frames < frames {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.batch(ctx, min(1+p.gen.IntN(batchFrames), frames-p.report.Frames)); err != nil {
			return err
		}
		for range p.gen.IntN(3) {
			if err := p.change(ctx); err != nil {
				return err
			}
		}
		if p.report.Frames >= restartAt {
			restartAt += frames
			if err := p.restart(ctx); err != nil {
				return err
			}
		}
	}
	if err := p.silence(ctx); err != nil {
		return err
	}
	for i := range specs {
		if p.net.ports[i].there && !p.uncounted[i] {
			if err := p.fast.endCount(ctx, i); err != nil {
				return err
			}
		}
	}
	return errors.Join(p.fast.lost(ctx), p.both((*host).full))
}

// batch sends frames into both hosts and compares what comes out.
func (p *pair) batch(ctx context.Context, frames int) error {
	for range frames {
		if err := p.send(ctx, p.gen.next()); err != nil {
			return err
		}
	}
	return p.compare()
}

// send puts a frame into both hosts.
func (p *pair) send(ctx context.Context, f *frame) error {
	p.report.Frames++
	p.report.Kinds[f.kind]++
	p.journal = append(p.journal, entry{frame: f})
	state := &p.net.ports[f.port]
	onPlain, err := p.plain.ports[f.port].send(&f.header, f.data)
	if err != nil {
		return err
	}
	to := p.fast.ports[f.port]
	onFast, err := to.send(&f.header, f.data)
	if err != nil {
		return err
	}
	if onPlain != onFast {
		return p.difference([]string{fmt.Sprintf("%v\nwas taken by the plain host: %t, by the fast one: %t", f, onPlain, onFast)})
	}
	// A veth's peer hands on nothing that is longer than the device's own MTU.
	if !onFast || !state.up || f.port == uplink && len(f.data) > state.mtu+ethLen+4 {
		return nil
	}
	if f.port == uplink && p.net.mtus[uplink] <= vethXDP || !f.cut() {
		to.hooked++
	}
	changes, moves := p.net.learn(f)
	if changes && f.port == uplink {
		if err := p.both((*host).uplinkBarrier); err != nil {
			return err
		}
	}
	if moves {
		return p.settleEntries()
	}
	return nil
}

// settle waits until the datapath agrees with the bridge.
func (p *pair) settle(ctx context.Context) error {
	if err := p.wait(func() error { return p.fast.awaitPorts(p.net.ports) }); err != nil {
		return err
	}
	if err := p.settleEntries(); err != nil {
		return err
	}
	for i := range p.uncounted {
		if err := p.fast.beginCount(ctx, i); err != nil {
			return err
		}
		delete(p.uncounted, i)
	}
	return nil
}

// settleEntries waits until the datapath forwards by the bridge's table, and
// that is the plain host's. Entries that were deleted while the daemon refreshed
// them come back; they are deleted again.
func (p *pair) settleEntries() error {
	return p.wait(func() error {
		for {
			if err := p.fast.awaitEntries(); err != nil {
				return err
			}
			d, returned, err := p.compareTables()
			if err != nil {
				return err
			}
			if len(d) != len(returned) {
				return p.difference(d)
			}
			if len(d) == 0 {
				return nil
			}
			for key, e := range returned {
				p.report.Returned++
				p.note(fmt.Sprintf("entry for %s on %s deleted again on the fast host", key.mac, p.fast.device(e.LinkIndex)))
				if err := p.fast.lab.Host.Netlink().NeighDel(&e); err != nil {
					return fmt.Errorf("deleting %s again: %w", key.mac, err)
				}
			}
		}
	})
}

// wait adds up how long waiting takes.
func (p *pair) wait(f func() error) error {
	begin := time.Now()
	err := f()
	took := time.Since(begin)
	p.report.Settling += took
	p.report.Longest = max(p.report.Longest, took)
	return err
}

// take empties all places.
func (p *pair) take() (places []place, err error) {
	for i := range specs {
		pl := place{name: specs[i].name}
		if h := p.plain.ports[i]; h != nil {
			pl.plain = h.box.take()
		}
		if h := p.fast.ports[i]; h != nil {
			pl.fast = h.box.take()
		}
		places = append(places, pl)
	}
	local := place{name: "the host's stack at a port"}
	if local.plain, err = p.plain.takeLocal(); err != nil {
		return nil, err
	}
	if local.fast, err = p.fast.takeLocal(); err != nil {
		return nil, err
	}
	return append(places, local, place{"the host's stack", p.plain.stack.take(), p.fast.stack.take()}), nil
}

// compare waits until all frames have come out, and compares them and the
// bridges' tables.
func (p *pair) compare() error {
	if err := p.both(func(h *host) error { return h.barrier(p.net.reach) }); err != nil {
		return p.difference([]string{err.Error()})
	}
	found, _, err := p.compareTables()
	if err != nil {
		return err
	}
	places, err := p.take()
	if err != nil {
		return err
	}
	for _, pl := range places {
		p.report.Out += len(pl.plain)
		d := pl.differences()
		if r := pl.reordered(); len(d) == 0 && r != "" {
			d = append(d, r)
		}
		found = append(found, d...)
	}
	if len(found) > 0 {
		return p.difference(found)
	}
	p.journal = p.journal[:0]
	return nil
}

// compareTables tells where the two bridges' tables differ, and of which learned
// entries that is because only the fast host has them.
//
// Entries in a VLAN are left out: without VLAN filtering they mean nothing, and a
// refresh makes them.
func (p *pair) compareTables() (d []string, more map[fdbKey]netlink.Neigh, err error) {
	plain, err := p.plain.fdb()
	if err != nil {
		return nil, nil, err
	}
	fast, err := p.fast.fdb()
	if err != nil {
		return nil, nil, err
	}
	const kinds = netlink.NUD_PERMANENT | netlink.NUD_NOARP
	show := func(h *host, e netlink.Neigh) string {
		return fmt.Sprintf("on %s (state %#x, flags %#x)", h.device(e.LinkIndex), e.State&kinds, e.Flags)
	}
	more = map[fdbKey]netlink.Neigh{}
	for key, e := range fast {
		if _, ok := plain[key]; !ok && key.vlan == 0 {
			d = append(d, fmt.Sprintf("the bridge's table: %s is %s on the fast host alone", key.mac, show(p.fast.host, e)))
			if e.State&kinds == 0 {
				more[key] = e
			}
		}
	}
	for key, e := range plain {
		want, have := show(p.plain, e), "not there"
		if other, ok := fast[key]; ok {
			have = show(p.fast.host, other)
		}
		if have != want && key.vlan == 0 {
			d = append(d, fmt.Sprintf("the bridge's table: %s is %s on the plain host, %s on the fast one", key.mac, want, have))
		}
	}
	return d, more, nil
}

// note puts a change into the journal.
func (p *pair) note(what string) { p.journal = append(p.journal, entry{what: what}) }

// restart has the daemon killed and started again under traffic.
func (p *pair) restart(ctx context.Context) error {
	if err := p.settle(ctx); err != nil {
		return err
	}
	p.gen.steady = true
	defer func() { p.gen.steady = false }()
	p.note("daemon killed")
	if err := p.fast.restart(ctx); err != nil {
		return err
	}
	if err := p.batch(ctx, steadyPhase); err != nil {
		return err
	}
	return p.settle(ctx)
}

// silence stops the daemon for longer than the datapath's lease.
func (p *pair) silence(ctx context.Context) error {
	if err := p.settle(ctx); err != nil {
		return err
	}
	s, err := p.fast.api.Status(ctx)
	if err != nil {
		return err
	}
	p.gen.steady = true
	defer func() { p.gen.steady = false }()
	p.note("daemon silent")
	if err := p.fast.stall(); err != nil {
		return err
	}
	defer p.fast.resume()
	// Traffic goes on before and after the lease runs out, of which nothing tells.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Duration(s.Lease*float64(time.Second)) + 200*time.Millisecond); time.Now().Before(end); <-tick.C {
		if err := p.batch(ctx, steadyPhase/4); err != nil {
			return err
		}
	}
	if err := p.batch(ctx, steadyPhase); err != nil {
		return err
	}
	if err := p.fast.resume(); err != nil {
		return err
	}
	return p.settle(ctx)
}

// A Difference says where the two hosts differ, and what went before.
type Difference struct{ text string }

func (d *Difference) Error() string { return d.text }

// difference makes an error of what was found and of the frames around it.
func (p *pair) difference(found []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "the hosts differ in %d things\n", len(found))
	for i, d := range found {
		if i == shownDifferences {
			b.WriteString("…\n")
			break
		}
		b.WriteString(d + "\n")
	}
	first := strings.Join(found[:1], "")
	b.WriteString("what went in since the last comparison:\n")
	for i, e := range p.journal {
		if e.frame == nil {
			fmt.Fprintf(&b, "%4d %s\n", i, e.what)
			continue
		}
		fmt.Fprintf(&b, "%4d %s → %s %v\n", i, source(e.frame.data), destination(e.frame.data), e.frame)
		if n, ok := serial(e.frame.data); ok && strings.Contains(first, fmt.Sprintf("frame %d,", n)) {
			b.WriteString(describe(e.frame.header[:], e.frame.data))
		}
	}
	return &Difference{b.String()}
}
