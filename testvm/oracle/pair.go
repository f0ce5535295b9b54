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
	// Log receives the daemon's log.
	Log io.Writer
}

// A Report says what was compared.
type Report struct {
	Frames  int
	Out     int            // frames that came out of the plain host
	Kinds   map[string]int // frames by kind
	Changes map[string]int
	// Verdicts are those on the frames and on the oracle's own marks.
	Verdicts map[vswitch.Verdict]uint64
	// Settling is how long the datapath was waited for.
	Settling time.Duration
	Elapsed  time.Duration
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
	fmt.Fprintf(&b, "%d frames in, %d out, %.0f%% redirected, %.1fs, of which %.1fs waiting for the datapath",
		r.Frames, r.Out, 100*r.Redirected(), r.Elapsed.Seconds(), r.Settling.Seconds())
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
	defer unpinned(pinned1())
	p := &pair{
		net: newNetwork(), uncounted: map[int]bool{},
		report: Report{Kinds: map[string]int{}, Changes: map[string]int{}, Verdicts: map[vswitch.Verdict]uint64{}},
	}
	p.gen = &generator{Rand: rand.New(rand.NewPCG(o.Seed, 0)), network: p.net, snooping: o.Snooping}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.open(ctx, o); err != nil {
		return Report{}, err
	}
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

// pinned1 keeps the caller on one CPU, and gives those that it had: frames that
// the caller puts into one device from two CPUs may overtake each other.
func pinned1() (before unix.CPUSet) {
	runtime.LockOSThread()
	unix.SchedGetaffinity(0, &before)
	var cpu unix.CPUSet
	for i := range 1024 {
		if before.IsSet(i) {
			cpu.Set(i)
			break
		}
	}
	unix.SchedSetaffinity(0, &cpu)
	return before
}

func unpinned(before unix.CPUSet) {
	unix.SchedSetaffinity(0, &before)
	runtime.UnlockOSThread()
}

func (p *pair) open(ctx context.Context, o Options) (err error) {
	if p.plain, err = newHost("plain", o.Snooping); err != nil {
		return err
	}
	h, err := newHost("fast", o.Snooping)
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
	p.take() // what the hosts said while they were made
	return p.settle(ctx)
}

func (p *pair) close() (err error) {
	if p.fast != nil {
		err = errors.Join(p.fast.close(), p.fast.host.close())
	}
	if p.plain != nil {
		err = errors.Join(err, p.plain.close())
	}
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
	return p.fast.lost(ctx)
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
	if f.hooked() {
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
	begin := time.Now()
	if err := p.fast.awaitPorts(p.net.ports); err != nil {
		return err
	}
	p.report.Settling += time.Since(begin)
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

func (p *pair) settleEntries() error {
	begin := time.Now()
	defer func() { p.report.Settling += time.Since(begin) }()
	return p.fast.awaitEntries()
}

// take empties all places.
func (p *pair) take() (places []place) {
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
	return append(places,
		place{"the host's stack", p.plain.stack.take(), p.fast.stack.take()},
		place{"the host's stack at a port", p.plain.local.take(), p.fast.local.take()})
}

// compare waits until all frames have come out, and compares them and the
// bridges' tables.
func (p *pair) compare() error {
	if err := p.both(func(h *host) error { return h.barrier(p.net.reach) }); err != nil {
		return p.difference([]string{err.Error()})
	}
	var found []string
	for _, pl := range p.take() {
		p.report.Out += len(pl.plain)
		d := pl.differences()
		if r := pl.reordered(); len(d) == 0 && r != "" {
			d = append(d, r)
		}
		found = append(found, d...)
	}
	t, err := p.compareTables()
	if err != nil {
		return err
	}
	if found = append(found, t...); len(found) > 0 {
		return p.difference(found)
	}
	p.journal = p.journal[:0]
	return nil
}

// compareTables tells where the two bridges' tables differ.
func (p *pair) compareTables() (d []string, err error) {
	type kind struct {
		device       string
		state, flags int
	}
	read := func(h *host) (map[fdbKey]kind, error) {
		entries, err := h.fdb()
		table := map[fdbKey]kind{}
		for key, e := range entries {
			table[key] = kind{h.device(e.LinkIndex), e.State & (netlink.NUD_PERMANENT | netlink.NUD_NOARP), e.Flags}
		}
		return table, err
	}
	plain, err := read(p.plain)
	if err != nil {
		return nil, err
	}
	fast, err := read(p.fast.host)
	if err != nil {
		return nil, err
	}
	for key, k := range plain {
		if fast[key] != k {
			d = append(d, fmt.Sprintf("the bridge's table: %v is %v on the plain host, %v on the fast one", key, k, fast[key]))
		}
	}
	for key, k := range fast {
		if _, ok := plain[key]; !ok {
			d = append(d, fmt.Sprintf("the bridge's table: %v is %v on the fast host alone", key, k))
		}
	}
	return d, nil
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
