package oracle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

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
	// Malformed has most frames not be as they should: too short, too long, cut, or
	// with a virtio-net header that lies.
	Malformed bool
	// VLANs makes the bridges VLAN-aware, most of the time. The error is
	// errors.ErrUnsupported where the kernel's bridge has no VLAN filtering.
	VLANs bool
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
	p.gen = &generator{Rand: rand.New(rand.NewPCG(o.Seed, 0)), network: p.net, snooping: o.Snooping, malformed: o.Malformed}
	if o.VLANs {
		p.net.bridging = &bridging{aware: true, tpid: unix.ETH_P_8021Q}
	}
	if err := p.open(ctx, o); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
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
	if err := p.openVLANs(); err != nil {
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

// batchFrames is how many frames go in at most between two comparisons: a veth
// with XDP takes 256 at a time.
const batchFrames = 200

func (p *pair) run(ctx context.Context, frames int) error {
	restartAt := frames / 2
	for p.report.Frames < frames {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.batch(ctx, min(1+p.gen.IntN(batchFrames), frames-p.report.Frames)); err != nil {
			return err
		}
		changes := 3
		if p.net.bridging != nil { // there is more to change
			changes = 6
		}
		for range p.gen.IntN(changes) {
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

// note puts a change into the journal.
func (p *pair) note(what string) { p.journal = append(p.journal, entry{what: what}) }
