package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/libvirtd"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// linuxAddr is the address of a guest that boots Linux.
const linuxAddr = "198.18.0.77"

// createLinux starts a guest with Linux and waits until it answers the wire.
func (h *libvirtHost) createLinux(t *testing.T, g libvirtd.Guest, ports ...string) libvirt.Domain {
	t.Helper()
	var err error
	g.Addr = linuxAddr + "/24"
	if g.Linux, err = h.virt.MakeLinux(within(t, 2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	dom := h.create(t, g, ports...)
	h.ask(t, "are you there?")
	return dom
}

// ask sends the guest a datagram until it answers.
func (h *libvirtHost) ask(t *testing.T, text string) {
	t.Helper()
	conn := must[net.Conn](t)(h.Wire.Dial(t.Context(), "udp4", fmt.Sprintf("%s:%d", linuxAddr, libvirtd.GuestPort)))
	defer conn.Close()
	b := make([]byte, 2048)
	for began := time.Now(); time.Since(began) < time.Minute; {
		if _, err := conn.Write([]byte(text)); err == nil {
			conn.SetReadDeadline(time.Now().Add(time.Second))
			if n, err := conn.Read(b); err == nil && string(b[:n]) == text {
				return
			}
		}
	}
	console, _ := os.ReadFile(h.virt.Dir() + "/a.console")
	t.Fatalf("the guest does not answer; its console says:\n%s", console[max(0, len(console)-2000):])
}

// echo sends the guest datagrams one by one, and gives how many came back.
func (h *libvirtHost) echo(ctx context.Context, t *testing.T, n int) (answers int) {
	t.Helper()
	conn := must[net.Conn](t)(h.Wire.Dial(ctx, "udp4", fmt.Sprintf("%s:%d", linuxAddr, libvirtd.GuestPort)))
	defer conn.Close()
	b := make([]byte, 2048)
	for i := range n {
		if _, err := fmt.Fprintf(conn, "echo %d", i); err != nil {
			continue
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if got, err := conn.Read(b); err == nil && string(b[:got]) == fmt.Sprintf("echo %d", i) {
			answers++
		}
	}
	return answers
}

// checkEchoes checks that all of 100 datagrams come back, by the fast path.
func (h *libvirtHost) checkEchoes(t *testing.T, port string) {
	t.Helper()
	const n = 100
	in, out := h.stats(t, lab.NIC).Verdicts[0].Frames, h.stats(t, port).Verdicts[0].Frames
	if got := h.echo(t.Context(), t, n); got != n {
		t.Errorf("%d of %d datagrams came back", got, n)
	}
	in, out = h.stats(t, lab.NIC).Verdicts[0].Frames-in, h.stats(t, port).Verdicts[0].Frames-out
	if in < n || out < n {
		t.Errorf("of %d datagrams %d were redirected to the guest and %d back", n, in, out)
	}
}

// A NIC that a running guest lets go of leaves nothing behind.
func TestL11HotUnplug(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	dom := h.createLinux(t, oneNIC("a", 1), "vnet0")
	h.checkEchoes(t, "vnet0")
	for range 3 {
		nic := libvirtd.BridgeInterface(guestAddr(2), lab.BridgeDev, "")
		check(t, h.conn.DomainAttachDeviceFlags(dom, nic, flagLive))
		var p control.Port
		eventually(t, 20*time.Second, "the new NIC is known", func() bool {
			for _, p = range h.ports(t) {
				if p.Guest != nil && p.Guest.MAC.String() == guestAddr(2) {
					return true
				}
			}
			return false
		})
		h.awaitFast(t, p.Name)
		h.checkConsistent(t)
		check(t, h.conn.DomainDetachDeviceFlags(dom, nic, flagLive))
		h.awaitNoPort(t, p.Name)
		h.checkConsistent(t)
		eventually(t, 20*time.Second, "libvirt's word is the same", func() bool {
			st, err := h.api.Status(t.Context())
			return err == nil && st.Libvirt.Guests == 1
		})
	}
	h.checkEchoes(t, "vnet0")
	h.destroy(t, dom, "vnet0")
	h.checkConsistent(t)
}

// A guest takes another address, which the bridge learns; nothing of the definition
// is in the way.
func TestL9GuestChangesItsAddress(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	dom := h.createLinux(t, oneNIC("a", 1), "vnet0")
	h.checkEchoes(t, "vnet0")
	for _, n := range []int{9, 1} {
		mac := must[net.HardwareAddr](t)(net.ParseMAC(guestAddr(n)))
		h.ask(t, "mac "+mac.String())
		check(t, h.Host.WaitFDB(within(t, 20*time.Second), "vnet0", mac))
		h.ask(t, "is it you?")
		h.checkConsistent(t)
		h.checkEchoes(t, "vnet0")
		// It is the same guest by its definition.
		if g := h.port(t, "vnet0").Guest; g == nil || g.MAC.String() != guestAddr(1) {
			t.Errorf("the port is that of %+v", g)
		}
	}
	h.destroy(t, dom, "vnet0")
}

// A guest is paused, reset, rebooted, saved, and taken back to a snapshot under traffic,
// and goes on by the fast path.
func TestLibvirtGuestGoesOn(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{Guests: 1})
	g := oneNIC("a", 1)
	g.Disk = h.virt.Dir() + "/a.disk"
	check(t, libvirtd.EmptyDisk(g.Disk))
	dom := h.createLinux(t, g, "vnet1")
	h.checkEchoes(t, "vnet1")
	other := stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 1000})

	// A paused guest's queue runs full, which is no other's loss.
	check(t, h.conn.DomainSuspend(dom))
	h.awaitPortIs(t, "vnet1", "paused", func(p control.Port) bool { return p.Guest != nil && p.Guest.Paused })
	conn := must[net.Conn](t)(h.Wire.Dial(t.Context(), "udp4", fmt.Sprintf("%s:%d", linuxAddr, libvirtd.GuestPort)))
	defer conn.Close()
	lost := func() (n uint64) {
		for _, d := range must[[]control.Drop](t)(h.api.Drops(t.Context())) {
			if d.Port == "vnet1" {
				n += d.Frames
			}
		}
		return n
	}
	began := other.Received()
	eventually(t, 30*time.Second, "frames to the paused guest are counted as lost, and another's arrive", func() bool {
		for range 500 {
			fmt.Fprint(conn, "nobody takes this")
		}
		return lost() > 5000 && other.Received() > began+500
	})
	whole(t, "wire to another guest", other)
	check(t, h.conn.DomainResume(dom))
	h.ask(t, "go on")
	h.checkEchoes(t, "vnet1")

	check(t, h.conn.DomainReset(dom, 0))
	h.ask(t, "are you there again?")
	h.checkEchoes(t, "vnet1")
	h.checkConsistent(t)

	before := h.port(t, "vnet1")
	h.rebootInside(t, conn)
	h.ask(t, "are you back?")
	if now := h.port(t, "vnet1"); now.Ifindex != before.Ifindex || now.Guest == nil || *now.Guest != *before.Guest {
		t.Errorf("after a reboot the port is %+v, was %+v", now, before)
	}
	h.checkEchoes(t, "vnet1")
	h.checkConsistent(t)

	file := h.virt.Dir() + "/a.save"
	check(t, h.conn.DomainSave(dom, file))
	h.awaitNoPort(t, "vnet1")
	check(t, h.conn.DomainRestore(file))
	h.ask(t, "have you slept?")
	p := h.guestPort(t)
	h.checkEchoes(t, p.Name)

	snapshot := must[libvirt.DomainSnapshot](t)(h.conn.DomainSnapshotCreateXML(dom, "<domainsnapshot><name>then</name></domainsnapshot>", 0))
	check(t, h.conn.DomainRevertToSnapshot(snapshot, 0))
	h.awaitNoPort(t, p.Name)
	h.ask(t, "what time is it?")
	p = h.guestPort(t)
	h.checkEchoes(t, p.Name)
	h.checkConsistent(t)
	h.destroy(t, dom, p.Name)
	h.checkConsistent(t)
}

// rebootInside makes the guest reboot by itself, and waits until libvirt has seen it.
func (h *libvirtHost) rebootInside(t *testing.T, conn net.Conn) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	events := must[<-chan any](t)(h.conn.SubscribeEvents(ctx, libvirt.DomainEventIDReboot, nil))
	must[int](t)(conn.Write([]byte("reboot")))
	if _, ok := <-events; !ok {
		t.Fatal("the guest has not rebooted")
	}
}
