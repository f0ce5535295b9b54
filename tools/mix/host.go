package mix

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/link"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/bench/ways"
)

// The ways that a frame can take through the host, as they are named in results.
const (
	Bridge     = "bridge"        // the plain bridge, with GRO on the NIC
	BridgePass = "bridge + PASS" // the same with an XDP program on the NIC that does nothing
	AllXDP     = "all by XDP"    // the fast path without a choice for bulk TCP
	Tapswitch  = "tapswitch"     // the fast path as it serves a NIC
	ByTC       = "tapswitch, tc" // the fast path as it serves a veth, or a NIC without XDP
)

// Ways are all of them, in the order of the tables.
var Ways = []string{Bridge, BridgePass, AllXDP, Tapswitch, ByTC}

// A host is a lab whose host sends frames by one way.
type host struct {
	*lab.Lab
	way    string
	daemon *lab.Daemon
	pass   link.Link
}

func newHost(ctx context.Context, way string, o Options) (_ *host, err error) {
	h := &host{way: way}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("making the host for %s: %w", way, err), h.close())
		}
	}()
	if h.Lab, err = lab.New(lab.Options{
		Guests: 2, Guest: lab.GuestOptions{NoOffloads: o.NoOffloads}, NICGRO: true, NoBridgeNetfilter: true,
	}); err != nil {
		return nil, err
	}
	switch way {
	case BridgePass:
		err = h.attachPass()
	case AllXDP:
		err = h.startDaemon(ctx, o.Daemon, "all-xdp", lab.NICConfig+"\nbulk_frame = 0")
	case Tapswitch:
		err = h.startDaemon(ctx, o.Daemon, "mix", lab.NICConfig)
	case ByTC:
		err = h.startDaemon(ctx, o.Daemon, "by-tc", fmt.Sprintf("uplinks = [%q]", lab.NIC))
	}
	if err != nil {
		return nil, err
	}
	return h, h.introduce(ctx)
}

func (h *host) startDaemon(ctx context.Context, path, name, config string) (err error) {
	h.daemon, err = h.Host.StartDaemon(ctx, lab.DaemonOptions{Path: path, Name: name, Config: config})
	return err
}

func (h *host) attachPass() error {
	programs, err := ways.Load(ways.Options{})
	if err != nil {
		return err
	}
	defer programs.Close()
	nic, err := h.Host.Ifindex(lab.NIC)
	if err != nil {
		return err
	}
	return h.Host.Do(func() error {
		h.pass, err = link.AttachXDP(link.XDPOptions{Program: programs.Pass, Interface: nic, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("attaching an XDP program to %s: %w", lab.NIC, err)
		}
		return nil
	})
}

// introduce makes the stations and the bridge know each other.
func (h *host) introduce(ctx context.Context) error {
	for _, v6 := range []bool{false, true} {
		for i, g := range h.Guests {
			to := []*lab.Node{h.Wire}
			if i > 0 {
				to = append(to, h.Guests[0].Node)
			}
			for _, n := range to {
				addr, err := n.Addr(v6)
				if err != nil {
					return err
				}
				if err := lab.Ping(ctx, g.Node, addr, 2); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (h *host) close() error {
	var errs []error
	if h.daemon != nil {
		errs = append(errs, h.daemon.Stop())
	}
	if h.pass != nil {
		errs = append(errs, h.pass.Close())
	}
	if h.Lab != nil {
		errs = append(errs, h.Lab.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ending the host for %s: %w", h.way, err)
	}
	return nil
}
