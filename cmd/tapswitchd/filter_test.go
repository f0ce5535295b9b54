package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/libvirtd"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// forgedAddr is an address that is not the Linux guest's.
const forgedAddr = "198.18.0.99"

// filtered gives an <interface> with clean-traffic and these addresses.
func filtered(more string, addrs ...string) string {
	var b strings.Builder
	b.WriteString(more + "<filterref filter='clean-traffic'>")
	for _, a := range addrs {
		fmt.Fprintf(&b, "<parameter name='IP' value='%s'/>", a)
	}
	b.WriteString("</filterref>")
	return libvirtd.BridgeInterface(guestAddr(1), lab.BridgeDev, b.String())
}

// awaitFilter waits until a port is in a state, with a text about its filter.
func (h *libvirtHost) awaitFilter(t *testing.T, port, state, text string) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("%s is %s with %q", port, state, text), func() bool {
		p := h.port(t, port)
		return p.State == state && holdText(p, text)
	})
}

// forge makes the guest answer n times from an address that it may not have, and as
// often from its own. It gives how many answers of the one kind came to the wire, and
// how many frames of the guest met which verdict.
func (h *libvirtHost) forge(t *testing.T, n int) (came int, verdicts map[vswitch.Verdict]uint64) {
	t.Helper()
	c := must[net.PacketConn](t)(h.Wire.ListenPacket("udp4", ":0"))
	defer c.Close()
	to := &net.UDPAddr{IP: net.ParseIP(linuxAddr), Port: libvirtd.GuestPort}
	verdicts = map[vswitch.Verdict]uint64{}
	before := h.verdicts(t, "vnet0")
	b := make([]byte, 2048)
	// Answers come in the order in which they are sent, but for those that have to take
	// the other way.
	answer := func(wait time.Duration) (from string) {
		c.SetReadDeadline(time.Now().Add(wait))
		_, addr, err := c.ReadFrom(b)
		if err != nil {
			return ""
		}
		return addr.(*net.UDPAddr).IP.String()
	}
	for range n {
		for _, text := range []string{"from " + forgedAddr, "as yourself"} {
			if _, err := c.WriteTo([]byte(text), to); err != nil {
				t.Fatal(err)
			}
		}
		for {
			from := answer(5 * time.Second)
			if from == forgedAddr {
				came++
				continue
			}
			if from == "" {
				t.Fatal("the guest does not answer from its own address")
			}
			break
		}
	}
	for answer(200*time.Millisecond) == forgedAddr {
		came++
	}
	for v, count := range h.verdicts(t, "vnet0") {
		if count > before[v] {
			verdicts[v] = count - before[v]
		}
	}
	return came, verdicts
}

// A guest with clean-traffic is fast as itself. What it sends as another goes by the
// bridge, where libvirt's own rules drop it.
func TestLibvirtCleanTraffic(t *testing.T) {
	const n = 20
	h := newLibvirtHost(t, lab.Options{})
	dom := h.createLinux(t, libvirtd.Guest{Name: "a", Interfaces: []string{filtered("", linuxAddr)}})
	const one = "clean-traffic is honoured: by the fast path go IPv4 of 52:54:00:00:01:01 with source address 198.18.0.77 in, IPv4 out"
	h.awaitFilter(t, "vnet0", control.StateFast, one)
	stopped := func() {
		t.Helper()
		h.checkEchoes(t, "vnet0")
		if came, v := h.forge(t, n); came > 0 || v[vswitch.PassFiltered] < n || v[vswitch.Redirected] != n {
			t.Errorf("%d forged datagrams reached the wire; verdicts of the guest's frames are %v, want %d forged ones passed and %d redirected", came, v, n, n)
		}
	}
	update := func(nic string) {
		t.Helper()
		check(t, h.conn.DomainUpdateDeviceFlags(dom, nic, libvirt.DomainDeviceModifyFlags(flagLive)))
	}
	const device = "<target dev='vnet0'/><alias name='net0'/>"
	stopped()

	// Another parameter of the running guest's, and back.
	update(filtered(device, linuxAddr, forgedAddr))
	h.awaitFilter(t, "vnet0", control.StateFast, "with source address 198.18.0.77, 198.18.0.99 in")
	if came, v := h.forge(t, n); came != n || v[vswitch.Redirected] != 2*n {
		t.Errorf("of %d datagrams from the second address %d came; verdicts are %v", n, came, v)
	}
	update(filtered(device, linuxAddr))
	h.awaitFilter(t, "vnet0", control.StateFast, one)
	stopped()

	// A new daemon goes on, and so does libvirt without its daemon.
	h.stop(t)
	h.start(t, lab.DaemonOptions{Config: labConfig + fmt.Sprintf("\nlibvirt = %q\n", h.virt.Socket)})
	h.awaitFilter(t, "vnet0", control.StateFast, one)
	check(t, h.virt.Kill())
	stopped()
	check(t, h.virt.Run(within(t, 30*time.Second)))
	h.connect(t)
	h.awaitFilter(t, "vnet0", control.StateFast, one)

	// Somebody else's rule for the tap is none of the filter's.
	rule := []string{"-t", "nat", "-A", "PREROUTING", "-i", "vnet0", "-p", "IPv6", "-j", "DROP"}
	h.run(t, "ebtables", rule...)
	h.awaitFilter(t, "vnet0", control.StateFastOut, "nftables table bridge nat has rules for vnet0")
	rule[2] = "-D"
	h.run(t, "ebtables", rule...)
	h.awaitFilter(t, "vnet0", control.StateFast, one)

	// What the name stands for is for the host to define.
	part := must[libvirt.Nwfilter](t)(h.conn.NwfilterLookupByName("allow-incoming-ipv4"))
	text := must[string](t)(h.conn.NwfilterGetXMLDesc(part, 0))
	stricter := strings.Replace(text, "</filter>", "<rule action='drop' direction='in' priority='100'><ip protocol='tcp'/></rule></filter>", 1)
	must[libvirt.Nwfilter](t)(h.conn.NwfilterDefineXML(stricter))
	h.awaitFilter(t, "vnet0", control.StateFastIn, "no frames out")
	must[libvirt.Nwfilter](t)(h.conn.NwfilterDefineXML(text))
	h.awaitFilter(t, "vnet0", control.StateFast, one)

	// Another Ethernet address never gets in. The guest asks for the wire's anew with it.
	passed := h.count(t, "vnet0", vswitch.PassGroup)
	conn := must[net.Conn](t)(h.Wire.Dial(t.Context(), "udp4", fmt.Sprintf("%s:%d", linuxAddr, libvirtd.GuestPort)))
	defer conn.Close()
	fmt.Fprint(conn, "mac "+guestAddr(9))
	eventually(t, 30*time.Second, "the guest sends from another Ethernet address", func() bool { return h.count(t, "vnet0", vswitch.PassGroup) > passed })
	for _, e := range must[[]control.FDBEntry](t)(h.api.FDB(t.Context(), control.FDBFilter{})) {
		if e.MAC.String() == guestAddr(9) {
			t.Errorf("the forged address got in: %+v", e)
		}
	}
	h.checkConsistent(t)

	// Without its filter it is as any other.
	update(libvirtd.BridgeInterface(guestAddr(1), lab.BridgeDev, device))
	h.awaitFast(t, "vnet0")
	h.destroy(t, dom, "vnet0")
	h.checkConsistent(t)
}
