package guestbpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// How long a program goes by its routes when nobody says that they still hold, and how
// often that is said.
const (
	routeLease = 2 * time.Second
	routeTick  = 500 * time.Millisecond
)

// A Follower keeps the routes of programs in step with the kernel's. When it stops, or
// hangs, the kernel gets every frame within two seconds.
type Follower struct {
	guest  Guest
	router *router
	news   *subscription
	renew  *ebpf.Program

	ipv4, ipv6 *routeTable
	neighbours *neighbourTable
	devices    map[int]*device
	otherRules map[uint8]bool // by family

	look looks
}

// looks are what has to be asked the kernel again.
type looks struct{ devices, rules, neighbours bool }

var followed = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV4_NETCONF,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV6_NETCONF,
	unix.RTNLGRP_IPV6_IFINFO,
}

func newFollower(g Guest, r *router) (_ *Follower, err error) {
	f := &Follower{
		guest:      g,
		router:     r,
		ipv4:       newRouteTable(r.maps[guestMapRoutes4]),
		ipv6:       newRouteTable(r.maps[guestMapRoutes6]),
		neighbours: newNeighbourTable(r.maps[guestMapNeighbours]),
		otherRules: map[uint8]bool{},
	}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.renew, err = r.loadRenew(); err != nil {
		return nil, err
	}
	if f.news, err = subscribe(followed...); err != nil {
		return nil, err
	}
	f.lookAtAll()
	if err := f.keepStep(); err != nil {
		return nil, err
	}
	return f, f.renewLease()
}

func (f *Follower) close() {
	if f.news != nil {
		f.news.close()
	}
	f.renew.Close()
	f.router.close()
}

// Run keeps in step until ctx ends, which is no error. The devices' programs stay
// attached and from then on pass every frame.
func (f *Follower) Run(ctx context.Context) error {
	defer f.close()
	err := f.run(ctx)
	return errors.Join(err, f.router.endLease())
}

func (f *Follower) run(ctx context.Context) error {
	next := time.Now()
	for ctx.Err() == nil {
		if err := f.keepStep(); err != nil {
			return err
		}
		if now := time.Now(); !now.Before(next) {
			if err := f.guest.checkAttached(f.router, f.devices); err != nil {
				return err
			}
			if err := f.renewLease(); err != nil {
				return err
			}
			// Of some settings there is no news.
			f.look.devices = true
			next = now.Add(routeTick)
		}
		if err := f.news.wait(ctx, time.Until(next)); err != nil {
			return err
		}
	}
	return nil
}

func (f *Follower) renewLease() error {
	frame := make([]byte, 64) // XDP programs are not run on less than an Ethernet header
	if _, err := f.renew.Run(&ebpf.RunOptions{Data: frame}); err != nil {
		return fmt.Errorf("saying that routes still hold: %w", err)
	}
	return nil
}

func (f *Follower) lookAtAll() {
	f.look = looks{true, true, true}
	f.ipv4.doubtful, f.ipv6.doubtful = true, true
}

// keepStep takes all the news there is and brings the programs' tables in step.
func (f *Follower) keepStep() error {
	var fail error
	err := f.news.drain(func(m syscall.NetlinkMessage) { fail = errors.Join(fail, f.hear(m)) })
	if errors.Is(err, errLost) {
		f.lookAtAll()
		err = nil
	}
	if err := errors.Join(err, fail); err != nil {
		return err
	}
	if err := f.lookAgain(); err != nil {
		return err
	}
	return errors.Join(
		f.ipv4.write(),
		f.ipv6.write(),
		f.neighbours.write(f.devices),
		f.router.setDevices(f.devices, f.families),
	)
}

func (f *Follower) hear(m syscall.NetlinkMessage) error {
	switch m.Header.Type {
	case syscall.RTM_NEWROUTE, syscall.RTM_DELROUTE:
		p, r, ok, err := readRoute(m.Data)
		if err != nil || !ok {
			return err
		}
		t := f.ipv6
		if p.Addr().Is4() {
			t = f.ipv4
		}
		if m.Header.Type == syscall.RTM_DELROUTE {
			t.vanish(p, r)
		} else {
			t.appear(p, r, m.Header.Flags&syscall.NLM_F_REPLACE != 0)
		}
	case syscall.RTM_NEWNEIGH, syscall.RTM_DELNEIGH:
		f.neighbours.hear(m.Header.Type, m.Data)
	case syscall.RTM_NEWADDR, syscall.RTM_DELADDR, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		// With them the kernel takes routes away without a word.
		f.ipv4.doubtful, f.ipv6.doubtful = true, true
	case syscall.RTM_NEWRULE, syscall.RTM_DELRULE:
		f.look.rules = true
	default: // of devices and their settings
		f.look.devices = true
	}
	return nil
}

// lookAgain asks the kernel for what the news left open.
func (f *Follower) lookAgain() error {
	if f.look.devices {
		if err := f.lookAtDevices(); err != nil {
			return err
		}
	}
	if f.look.rules {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			others, err := hasOtherRules(family)
			if err != nil {
				return err
			}
			f.otherRules[family] = others
		}
	}
	if f.look.neighbours {
		if err := f.neighbours.list(); err != nil {
			return err
		}
	}
	f.look = looks{}
	return errors.Join(f.ipv4.list(unix.AF_INET), f.ipv6.list(unix.AF_INET6))
}

func (f *Follower) lookAtDevices() error {
	now, err := listDevices()
	if err != nil {
		return err
	}
	for ifindex, d := range now {
		old := f.devices[ifindex]
		if old == nil || *old != *d {
			f.neighbours.deviceChanged(ifindex)
		}
		// With a device go routes, without a word.
		if old == nil || old.up != d.up || old.running != d.running || old.ipv4.on != d.ipv4.on || old.ipv6.on != d.ipv6.on {
			f.ipv4.doubtful, f.ipv6.doubtful = true, true
		}
	}
	for ifindex := range f.devices {
		if now[ifindex] == nil {
			f.neighbours.deviceChanged(ifindex)
			f.ipv4.doubtful, f.ipv6.doubtful = true, true
		}
	}
	f.devices = now
	return nil
}

// families says what is routed of what comes by a device.
func (f *Follower) families(d *device) (bits guestFamilyBit) {
	if !d.up || d.master != 0 {
		return 0
	}
	if d.ipv4.on && d.ipv4.forwarding && f.ipv4.wide == 0 && !f.otherRules[unix.AF_INET] {
		bits |= guestFamilyBitROUTE_IPV4
	}
	if d.ipv6.on && d.ipv6.forwarding && f.ipv6.wide == 0 && !f.otherRules[unix.AF_INET6] && forwardsIPv6() {
		bits |= guestFamilyBitROUTE_IPV6
	}
	return bits
}

// forwardsIPv6 reads the setting that the kernel goes by, beside those of devices.
func forwardsIPv6() bool {
	b, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/forwarding")
	return err == nil && len(b) > 0 && b[0] != '0'
}
