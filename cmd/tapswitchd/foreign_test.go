package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// foreignProgram loads somebody else's program, which lets every frame pass.
func foreignProgram(t *testing.T, typ ebpf.ProgramType) *ebpf.Program {
	t.Helper()
	pass := int32(-1) // TC_ACT_UNSPEC, TCX_NEXT
	if typ == ebpf.XDP {
		pass = 2 // XDP_PASS
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: typ, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// A foreigner is somebody else's program on a device of the host.
type foreigner struct {
	where  string // as programsOn has it
	attach func() (detach func() error, err error)
	detach func() error
}

func (h *host) foreignXDP(t *testing.T, dev string) *foreigner {
	p := foreignProgram(t, ebpf.XDP)
	return &foreigner{where: dev + " xdp", attach: func() (func() error, error) {
		l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: h.ifindex(t, dev), Flags: link.XDPDriverMode})
		if err != nil {
			return nil, err
		}
		return l.Close, nil
	}}
}

func (h *host) foreignTCX(t *testing.T, dev string, at ebpf.AttachType) *foreigner {
	p := foreignProgram(t, ebpf.SchedCLS)
	return &foreigner{where: dev + " tcx", attach: func() (func() error, error) {
		l, err := link.AttachTCX(link.TCXOptions{Program: p, Interface: h.ifindex(t, dev), Attach: at})
		if err != nil {
			return nil, err
		}
		return l.Close, nil
	}}
}

// foreignFilter is a filter in a clsact qdisc, which stays when the filter goes.
func (h *host) foreignFilter(t *testing.T, dev string) *foreigner {
	p := foreignProgram(t, ebpf.SchedCLS)
	ifindex := h.ifindex(t, dev)
	h.run(t, "tc", "qdisc", "add", "dev", dev, "clsact")
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Fd: p.FD(), Name: "foreign", DirectAction: true,
	}
	return &foreigner{where: dev + " clsact", attach: func() (func() error, error) {
		return func() error { return netlink.FilterDel(filter) }, netlink.FilterAdd(filter)
	}}
}

func (h *host) ifindex(t *testing.T, dev string) int {
	t.Helper()
	i, err := h.Host.Ifindex(dev)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// putOn attaches a foreign program.
func (h *host) putOn(t *testing.T, f *foreigner) {
	t.Helper()
	err := h.Host.Do(func() (err error) {
		f.detach, err = f.attach()
		return err
	})
	if err != nil {
		t.Fatalf("attaching a foreign program on %s: %v", f.where, err)
	}
}

// takeOff detaches a foreign program.
func (h *host) takeOff(t *testing.T, f *foreigner) {
	t.Helper()
	if err := h.Host.Do(f.detach); err != nil {
		t.Fatalf("detaching the foreign program on %s: %v", f.where, err)
	}
}

// noticed is within which the daemon is to see what makes no event, with room for
// a busy machine: it looks every second.
const noticed = 3 * time.Second

func TestForeignXDP(t *testing.T) {
	h := newLab(t, lab.Options{Guests: 1})
	foreign := h.foreignXDP(t, lab.NIC)
	h.putOn(t, foreign)
	alone := h.programsOn(t)
	for range 2 {
		h.start(t, lab.DaemonOptions{})
		h.awaitPort(t, noticed, lab.NIC, control.StateHeld, "(foreign) of somebody else is on nic0")
		h.awaitFast(t, "vnet0")
		ping(t, h.Wire, h.Guests[0].Node)
		if on := h.programsOn(t)[foreign.where]; !cmp.Equal(on, alone[foreign.where]) {
			t.Errorf("on %s is %v, was %v", foreign.where, on, alone[foreign.where])
		}
		h.stop(t)
		if on := h.programsOn(t); !cmp.Equal(on, alone) {
			t.Errorf("after the daemon programs are on %v, were before on %v", on, alone)
		}
	}
	h.start(t, lab.DaemonOptions{})
	s := stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 1000})
	h.takeOff(t, foreign)
	h.awaitPort(t, noticed, lab.NIC, control.StateFast, "")
	h.awaitRedirects(t, lab.NIC, s)
	whole(t, "wire to guest", s)
	// The kernel keeps others away from a device that is ours.
	err := h.Host.Do(func() error {
		_, err := foreign.attach()
		return err
	})
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) {
		t.Errorf("attaching a foreign XDP program beside ours: %v, want EBUSY", err)
	}
	h.checkFast(t, h.Wire, h.Guests[0].Node, lab.NIC, "vnet0")
}

func TestForeignTC(t *testing.T) {
	h := newLab(t, lab.Options{Guests: 3})
	// Whatever comes on a tap, and in whichever direction.
	before := []*foreigner{h.foreignFilter(t, "vnet1")}
	later := before
	if tcHook() == "tcx" {
		later = append(later, h.foreignTCX(t, "vnet0", ebpf.AttachTCXEgress), h.foreignTCX(t, "vnet2", ebpf.AttachTCXIngress))
		before = append(before, h.foreignTCX(t, "vnet0", ebpf.AttachTCXIngress))
	} else {
		t.Log("SKIPPED: programs at tcx, which needs Linux 6.6")
	}
	for _, f := range before {
		h.putOn(t, f)
	}
	h.start(t, lab.DaemonOptions{})
	var streams []*lab.Stream
	for _, g := range h.Guests {
		streams = append(streams,
			stream(t, h.Wire, g.Node, lab.StreamOptions{Rate: 500}), stream(t, g.Node, h.Wire, lab.StreamOptions{Rate: 500}))
	}
	check := func(foreigners []*foreigner) {
		t.Helper()
		held := map[string]bool{}
		for _, f := range foreigners {
			dev, what, _ := strings.Cut(f.where, " ")
			held[dev] = true
			reason := map[string]string{"tcx": "(foreign) of somebody else is on " + dev, "clsact": "tc bpf filter of somebody else is on " + dev}[what]
			h.awaitPort(t, noticed, dev, control.StateHeld, reason)
			if p := h.port(t, dev); p.Hook != "" {
				t.Errorf("%s is held, but has our program by %s beside a foreign one", dev, p.Hook)
			}
			h.checkSlow(t, h.Wire, h.guestAt(dev).Node, dev)
		}
		for _, g := range h.Guests {
			if !held[g.Port] {
				h.awaitPort(t, noticed, g.Port, control.StateFast, "")
				h.checkFast(t, h.Wire, g.Node, lab.NIC, g.Port)
			}
		}
		h.checkForeign(t, foreigners)
	}
	check(before)
	for _, f := range before {
		h.takeOff(t, f)
	}
	check(nil)
	for _, f := range later {
		h.putOn(t, f)
	}
	check(later)
	for _, s := range streams {
		whole(t, "stream", s)
	}
	h.stop(t)
	h.checkForeign(t, later)
	for _, f := range later {
		h.takeOff(t, f)
	}
	h.run(t, "tc", "qdisc", "del", "dev", "vnet1", "clsact")
}

func (h *host) guestAt(port string) *lab.Guest {
	for _, g := range h.Guests {
		if g.Port == port {
			return g
		}
	}
	return nil
}

// checkForeign checks that the foreign programs are where they were put. Both
// ways of asking the kernel are needed: it shows filters and tcx apart.
func (h *host) checkForeign(t *testing.T, foreigners []*foreigner) {
	t.Helper()
	err := h.Host.Do(func() error {
		for _, f := range foreigners {
			dev, what, _ := strings.Cut(f.where, " ")
			n := 0
			if tcHook() == "tcx" {
				for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
					result, err := link.QueryPrograms(link.QueryOptions{Target: h.ifindex(t, dev), Attach: at})
					if err != nil {
						return err
					}
					n += len(result.Programs)
				}
			}
			if what == "clsact" {
				l, err := netlink.LinkByName(dev)
				if err != nil {
					return err
				}
				filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
				if err != nil {
					return err
				}
				n += len(filters)
			}
			if n != 1 {
				t.Errorf("%d programs are on %s, want the foreign one alone", n, dev)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
