package demo

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

const (
	transferBytes = 50e6
	// transferRounds is how often each transfer is made: one alone tells little
	// about a rate.
	transferRounds = 5
	// fetchWithin leaves time for a machine that is busy with other things; a path
	// that is broken does not get there in hours.
	fetchWithin = 30 * time.Second
)

// A Transfer is a file that one station fetches from another over TCP, by three
// ways. Making and hashing the file is part of the time.
type Transfer struct {
	Check
	Into   string `json:"into"`
	From   string `json:"from"`
	Family string `json:"family"` // "ipv4" or "ipv6"
	Bytes  int64  `json:"bytes"`
	// SHA256 is what both ends have hashed, of the last transfer by the fast path.
	SHA256 string `json:"sha256"`
	// Bridge is the plain bridge; BridgeXDP is the same with an XDP program on the
	// NIC that does nothing. A veth copies each frame for an XDP program, which a
	// NIC does not, so that is what the fast path is to be compared with.
	Bridge    Rate `json:"bridge"`
	BridgeXDP Rate `json:"bridge_xdp_pass"`
	Tapswitch Rate `json:"tapswitch"`

	into, from *lab.Node
	egress     string // the host's port to the receiver
}

// A Rate is how fast a file came by one way, and what the way has lost of it.
type Rate struct {
	MbitPerSecond float64 `json:"mbit_per_s"` // of the payload; the median
	// Lost is how many frames were dropped at the port that leads to the receiver,
	// in all transfers together. TCP sends ever faster until a queue is full, and
	// sends anew what is lost.
	Lost uint64 `json:"lost_frames"`
}

// newTransfers gives the rows, with nothing measured.
func (s *scenario) newTransfers() []Transfer {
	a, b := s.Guests[0].Node, s.Guests[1].Node
	port := map[*lab.Node]string{s.Wire: lab.NIC, a: s.Guests[0].Port, b: s.Guests[1].Port}
	row := func(into, from *lab.Node, family string) Transfer {
		return Transfer{
			Check: Check{Name: fmt.Sprintf("%s fetches from %s over %s", into.Name(), from.Name(), family)},
			Into:  into.Name(), From: from.Name(), Family: family, Bytes: transferBytes,
			into: into, from: from, egress: port[into],
		}
	}
	return []Transfer{
		row(a, s.Wire, "ipv4"), row(s.Wire, a, "ipv4"), row(a, b, "ipv4"),
		row(a, s.Wire, "ipv6"), row(s.Wire, a, "ipv6"),
	}
}

// transferByBridge makes the transfers by the bridge alone, before there is a
// daemon.
func (s *scenario) transferByBridge(ctx context.Context) (err error) {
	s.transfers = s.newTransfers()
	s.progress.step("fetching files over TCP by the plain bridge")
	if err := s.transfer(ctx, func(t *Transfer) *Rate { return &t.Bridge }, s.readTxDropped); err != nil {
		return err
	}
	s.progress.step("the same with an XDP program on the NIC that does nothing")
	pass, err := s.attachPass()
	if err != nil {
		return err
	}
	defer func() {
		if e := pass.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("detaching the XDP program from %s: %w", lab.NIC, e))
		}
	}()
	return s.transfer(ctx, func(t *Transfer) *Rate { return &t.BridgeXDP }, s.readTxDropped)
}

// transferByTapswitch makes them by the fast path, and remembers what it lost.
func (s *scenario) transferByTapswitch(ctx context.Context) error {
	s.progress.step("fetching files over TCP by the fast path")
	lostAt := func(port string) (uint64, error) {
		all, err := s.readLost(ctx)
		return all[port].frames(), err
	}
	before, err := s.readLost(ctx)
	if err != nil {
		return err
	}
	if err := s.transfer(ctx, func(t *Transfer) *Rate { return &t.Tapswitch }, lostAt); err != nil {
		return err
	}
	after, err := s.readLost(ctx)
	if err != nil {
		return err
	}
	s.lostInTransfers = map[string]lost{}
	for port := range after {
		s.lostInTransfers[port] = after[port].since(before[port])
	}
	for i := range s.transfers {
		s.transfers[i].judge()
	}
	s.report.Transfers = s.transfers
	return nil
}

// transfer makes all transfers, and puts what came of each where rate says; lostAt
// counts what was lost at a port. A transfer that fails has its reason in Seen,
// and is not made again.
func (s *scenario) transfer(ctx context.Context, rate func(*Transfer) *Rate, lostAt func(port string) (uint64, error)) error {
	rounds := transferRounds
	if s.Quick {
		rounds = 1
	}
	speeds := make([][]float64, len(s.transfers))
	for range rounds {
		for i := range s.transfers {
			t := &s.transfers[i]
			if t.Seen != "" || ctx.Err() != nil {
				continue
			}
			before, err := lostAt(t.egress)
			if err != nil {
				return err
			}
			r, err := t.fetch(ctx)
			if err != nil {
				t.Seen = err.Error()
				continue
			}
			after, err := lostAt(t.egress)
			if err != nil {
				return err
			}
			t.SHA256 = hex.EncodeToString(r.SHA256[:])
			rate(t).Lost += after - before
			speeds[i] = append(speeds[i], r.MbPerSecond())
		}
	}
	for i, list := range speeds {
		if len(list) == rounds {
			slices.Sort(list)
			rate(&s.transfers[i]).MbitPerSecond = list[rounds/2]
		}
	}
	return ctx.Err()
}

func (t *Transfer) fetch(ctx context.Context) (lab.FetchReport, error) {
	addr, err := t.from.Addr(t.Family == "ipv6")
	if err != nil {
		return lab.FetchReport{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	return lab.Fetch(ctx, t.into, t.from, addr, t.Bytes)
}

// judge fills in the check: lab.Fetch fails unless both ends have hashed the same.
func (t *Transfer) judge() {
	if t.Seen != "" {
		return
	}
	t.OK = t.Bridge.MbitPerSecond > 0 && t.BridgeXDP.MbitPerSecond > 0 && t.Tapswitch.MbitPerSecond > 0
	t.Seen = fmt.Sprintf("%d bytes, SHA-256 equal on both ends by each way", t.Bytes)
}

// attachPass attaches a program to the NIC that leaves every frame to the bridge.
func (s *scenario) attachPass() (link.Link, error) {
	const xdpPass = 2
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pass", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("loading an XDP program that does nothing: %w", err)
	}
	defer p.Close()
	ifindex, err := s.Host.Ifindex(lab.NIC)
	if err != nil {
		return nil, err
	}
	var l link.Link
	err = s.Host.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: ifindex, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("attaching an XDP program to %s: %w", lab.NIC, err)
	}
	return l, nil
}
