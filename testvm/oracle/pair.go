package oracle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// Options say what hosts to compare.
type Options struct {
	Daemon string `json:"-"` // path of the tapswitchd
	// Snooping has the bridges look for members of multicast groups.
	Snooping bool `json:"snooping,omitempty"`
	// Jumbo gives the uplink an MTU of 9000, with which the fast path takes frames
	// from a veth after the kernel has made an skb of them, not by XDP.
	Jumbo bool `json:"jumbo,omitempty"`
	// VLANs makes the bridges VLAN-aware at first. The error is
	// errors.ErrUnsupported where the kernel's bridge has no VLAN filtering.
	VLANs bool `json:"vlans,omitempty"`
	// Malformed has most frames not be as they should: too short, too long, cut, or
	// with a virtio-net header that lies.
	Malformed bool `json:"-"`
	// Attended keeps the daemon there all the time, which saves the seconds after which
	// the fast path acts no longer without.
	Attended bool `json:"-"`
	// Patience is how long anything may take that takes milliseconds; 20 s if 0.
	Patience time.Duration `json:"-"`
	// Log receives the daemon's log.
	Log io.Writer `json:"-"`
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
	// uncounted are the ports whose frames the datapath may not see yet.
	uncounted map[int]bool
	// unsettled says that the datapath must be waited for before the next frame.
	unsettled bool
	away      string // how the daemon is, or empty
	unpin     func()
	journal   []step // since the last comparison
	report    Report
}

// newPair makes two equal hosts. The calling goroutine stays on one CPU until
// the pair is closed: frames that go into one device from two CPUs may overtake
// each other.
func newPair(ctx context.Context, o Options) (*pair, error) {
	p := &pair{
		net: newNetwork(o.uplinkMTU()), uncounted: map[int]bool{}, unpin: pin(),
		report: Report{Kinds: map[string]int{}, Changes: map[string]int{}, Verdicts: map[vswitch.Verdict]uint64{}},
	}
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
	if err := p.followVLANs(); err != nil {
		return err
	}
	for i := range specs {
		p.uncounted[i] = true
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
		err = errors.Join(p.back(context.Background()), p.fast.close(), p.fast.host.close())
	}
	if p.plain != nil {
		err = errors.Join(err, p.plain.close())
	}
	p.unpin()
	return err
}

// do does a step to both hosts.
func (p *pair) do(ctx context.Context, s step) error {
	if s.Change == nil {
		return p.send(ctx, s.Frame)
	}
	p.journal = append(p.journal, s)
	return p.change(ctx, s.Change)
}

// send puts a frame into both hosts, if its port is there.
func (p *pair) send(ctx context.Context, f *frame) error {
	state := &p.net.ports[f.port]
	if !state.there {
		return nil
	}
	if p.away == "" {
		if err := p.settleBefore(ctx, f); err != nil {
			return err
		}
	} else if _, moves := p.net.teaches(f); moves {
		return nil // the fast path would not hear of it
	}
	if f.port != uplink && touches(f, p.net.unseen) {
		if err := p.seeUplink(); err != nil {
			return err
		}
	}
	p.report.Frames++
	p.report.Kinds[f.kind]++
	p.journal = append(p.journal, step{Frame: f})
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
		p.net.unseen[source(f.data)] = true
	}
	if moves {
		p.net.moved[source(f.data)] = true
	}
	return nil
}

// seeUplink waits until the bridges have learned what they can from the wire.
func (p *pair) seeUplink() error {
	if len(p.net.unseen) == 0 {
		return nil
	}
	clear(p.net.unseen)
	return p.both((*host).uplinkBarrier)
}

// finish waits until all is quiet, and checks what is counted until then.
func (p *pair) finish(ctx context.Context) error {
	if err := p.back(ctx); err != nil {
		return err
	}
	if err := p.compare(); err != nil {
		return err
	}
	if err := p.settle(ctx); err != nil {
		return err
	}
	for i := range specs {
		if p.net.ports[i].there && !p.uncounted[i] {
			if err := p.fast.endCount(ctx, i); err != nil {
				return p.difference([]string{err.Error()})
			}
		}
	}
	for _, counts := range p.fast.counts {
		for v, n := range counts {
			p.report.Verdicts[v] += n
		}
	}
	if err := p.fast.lost(ctx); err != nil {
		return p.difference([]string{err.Error()})
	}
	return p.both((*host).full)
}
