package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/libvirtd"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// newLibvirtHosts builds two hosts on one wire, each with its libvirtd and its daemon.
func newLibvirtHosts(t *testing.T) (a, b *libvirtHost) {
	t.Helper()
	a = &libvirtHost{host: newLab(t, lab.Options{NoHostAddr: true})}
	b = &libvirtHost{host: newLab(t, lab.Options{NoHostAddr: true})}
	a.name, b.name = "A", "B"
	check(t, a.Join(b.Lab))
	a.startBoth(t)
	b.startBoth(t)
	return a, b
}

// migrate moves a domain to another host, by that host's libvirtd and QEMU.
func (h *libvirtHost) migrate(t *testing.T, dom libvirt.Domain, to *libvirtHost, how libvirt.DomainMigrateFlags) {
	t.Helper()
	by := libvirt.TypedParam{Field: "migrate_uri", Value: *libvirt.NewTypedParamValueString("unix://" + to.virt.Dir() + "/migration.sock")}
	_, err := h.conn.DomainMigratePerform3Params(dom, libvirt.OptString{"qemu+unix:///system?socket=" + to.virt.Socket},
		[]libvirt.TypedParam{by}, nil, libvirt.MigratePeer2peer|how)
	check(t, err)
}

// guestPort gives the port of the guest that a host has, once it is fast.
func (h *libvirtHost) guestPort(t *testing.T) (p control.Port) {
	t.Helper()
	eventually(t, 20*time.Second, "the guest's port is known", func() bool {
		for _, p = range h.ports(t) {
			if p.Guest != nil {
				return true
			}
		}
		return false
	})
	h.awaitFast(t, p.Name)
	return p
}

// A counter sends a guest numbered datagrams, and counts how often each comes back.
type counter struct {
	conn    net.Conn
	stop    context.CancelFunc
	running sync.WaitGroup
	sent    uint64
	answers map[uint64]int
}

func (h *libvirtHost) startCounter(t *testing.T) *counter {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &counter{
		conn: must[net.Conn](t)(h.Wire.Dial(ctx, "udp4", fmt.Sprintf("%s:%d", linuxAddr, libvirtd.GuestPort))),
		stop: stop, answers: map[uint64]int{},
	}
	c.running.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			if _, err := c.conn.Write(binary.BigEndian.AppendUint64(nil, c.sent)); err == nil {
				c.sent++
			}
		}
	})
	c.running.Go(func() {
		b := make([]byte, 64)
		for {
			n, err := c.conn.Read(b)
			switch {
			case err == nil && n == 8:
				c.answers[binary.BigEndian.Uint64(b)]++
			case ctx.Err() != nil:
				return
			}
		}
	})
	t.Cleanup(func() { c.end() })
	return c
}

// end stops the counter when the last answers have had time to come. It gives how many
// datagrams were sent, how many of them answered, and how many more than once.
func (c *counter) end() (sent, answered, twice int) {
	c.stop()
	c.conn.SetReadDeadline(time.Now().Add(time.Second))
	c.running.Wait()
	c.conn.Close()
	for _, n := range c.answers {
		answered++
		if n > 1 {
			twice++
		}
	}
	return int(c.sent), answered, twice
}

// A guest moves to another host, and back, while it runs. Nothing is announced there
// or sent to it by the fast path before it runs there; then its frames go by the fast
// path there, none come twice, and nothing is left where it was.
func TestL7LiveMigration(t *testing.T) {
	a, b := newLibvirtHosts(t)
	mac := must[net.HardwareAddr](t)(net.ParseMAC(guestAddr(1)))
	fromB := must[*lab.Packet](t)(lab.OpenPacket(a.Wire, lab.OtherDev))
	t.Cleanup(func() { fromB.Close() })
	fromB.Keep(func(f []byte) bool { return bytes.Equal(f[6:12], mac) })
	dom := a.createLinux(t, oneNIC("a", 1), "vnet0")
	a.checkEchoes(t, "vnet0")

	// It is there, but does not run yet.
	a.migrate(t, dom, b, libvirt.MigrateLive|libvirt.MigratePaused)
	a.awaitNoPort(t, "vnet0")
	a.checkConsistent(t)
	b.awaitPortIs(t, "vnet0", "fast, and that of the paused guest", func(p control.Port) bool {
		return p.State == control.StateFast && p.Guest != nil && p.Guest.Paused
	})
	for range 10 {
		check(t, fromB.Send(frame(mac, lab.WireMAC, "are you there already?")))
	}
	b.await(t, 5*time.Second, "the frames have come", func() bool {
		n := uint64(0)
		for _, v := range b.stats(t, lab.NIC).Verdicts {
			n += v.Frames
		}
		return n >= 10
	})
	if s := b.stats(t, "vnet0"); s.FlushedFrames > 0 {
		t.Errorf("%d frames went to the guest by the fast path before it ran", s.FlushedFrames)
	}
	if err := b.Host.WaitNoFDB(within(t, time.Second), "vnet0", mac); err != nil {
		t.Error("before the guest runs:", err)
	}
	if f := fromB.Frames(); len(f) > 0 {
		t.Errorf("the guest was announced before it ran: % x", f[0].Data)
	}
	b.checkConsistent(t)

	check(t, b.conn.DomainResume(dom))
	check(t, b.Host.WaitFDB(within(t, 20*time.Second), "vnet0", mac))
	a.ask(t, "are you there?")
	b.checkEchoes(t, "vnet0")
	b.checkConsistent(t)
	a.checkConsistent(t)

	// Back, under traffic. The guest stands still while its memory is copied: without
	// KVM, QEMU loses some of what a busy one writes meanwhile.
	c := a.startCounter(t)
	b.migrate(t, dom, a, 0)
	b.awaitNoPort(t, "vnet0")
	p := a.guestPort(t)
	check(t, a.Host.WaitFDB(within(t, 20*time.Second), p.Name, mac))
	a.ask(t, "are you back?")
	a.checkEchoes(t, p.Name)
	sent, answered, twice := c.end()
	t.Logf("of %d datagrams to the guest as it moved %d were answered", sent, answered)
	if twice > 0 || answered == 0 {
		t.Errorf("of %d datagrams to the guest as it moved %d were answered, %d more than once", sent, answered, twice)
	}
	a.checkConsistent(t)
	b.checkConsistent(t)
	a.destroy(t, dom, p.Name)
	a.checkConsistent(t)
}
