package main

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/libvirtd"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A libvirtHost is a host with a libvirtd beside the daemon.
type libvirtHost struct {
	*host
	virt *libvirtd.Daemon
	conn *libvirt.Libvirt
}

// newLibvirtHost builds a lab with a libvirtd and a daemon that listens to it. The
// guests end before the daemon does.
func newLibvirtHost(t *testing.T, o lab.Options) *libvirtHost {
	t.Helper()
	h := &libvirtHost{host: newLab(t, o)}
	h.startBoth(t)
	return h
}

// startBoth starts the libvirtd and the daemon.
func (h *libvirtHost) startBoth(t *testing.T) {
	t.Helper()
	var err error
	if h.virt, err = libvirtd.Start(within(t, 30*time.Second), h.Host, libvirtd.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.virt.Close(); err != nil {
			t.Error(err)
		}
	})
	h.connect(t)
	h.start(t, lab.DaemonOptions{Config: labConfig + fmt.Sprintf("\nlibvirt = %q\n", h.virt.Socket)})
}

// connect connects to libvirtd, again if it was restarted.
func (h *libvirtHost) connect(t *testing.T) {
	t.Helper()
	c, err := h.virt.Connect(libvirt.QEMUSystem)
	if err != nil {
		t.Fatal(err)
	}
	h.conn = c
}

// guestAddr gives the address of the n-th NIC of all guests.
func guestAddr(n int) string { return fmt.Sprintf("52:54:00:00:01:%02x", n) }

// guest gives a guest with one NIC on the lab's bridge.
func oneNIC(name string, n int) libvirtd.Guest {
	return libvirtd.Guest{Name: name, Interfaces: []string{libvirtd.BridgeInterface(guestAddr(n), lab.BridgeDev, "")}}
}

// create starts a guest and waits until its ports are known as its own.
func (h *libvirtHost) create(t *testing.T, g libvirtd.Guest, ports ...string) libvirt.Domain {
	t.Helper()
	dom, err := h.conn.DomainCreateXML(g.XML(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		h.awaitGuest(t, p, g.Name)
		h.awaitFast(t, p)
	}
	return dom
}

func (h *libvirtHost) destroy(t *testing.T, dom libvirt.Domain, ports ...string) {
	t.Helper()
	if err := h.conn.DomainDestroy(dom); err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		h.awaitNoPort(t, p)
	}
}

func (h *libvirtHost) awaitNoPort(t *testing.T, port string) {
	t.Helper()
	h.await(t, 10*time.Second, port+" is gone", func() bool { return h.port(t, port).Name == "" })
}

// awaitGuest waits until a port is a domain's, or nobody's if the name is empty.
func (h *libvirtHost) awaitGuest(t *testing.T, port, domain string) {
	t.Helper()
	h.awaitPortIs(t, port, fmt.Sprintf("that of %q", domain), func(p control.Port) bool {
		if p.Guest == nil {
			return domain == "" && p.Name != ""
		}
		return p.Guest.Domain == domain
	})
}

// awaitPortIs waits for what libvirt tells of a port, which is not logged.
func (h *libvirtHost) awaitPortIs(t *testing.T, port, what string, is func(control.Port) bool) {
	t.Helper()
	eventually(t, 20*time.Second, port+" is "+what, func() bool { return is(h.port(t, port)) })
}

// must gives what libvirt answers without an error.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ports gives all ports.
func (h *libvirtHost) ports(t *testing.T) []control.Port {
	t.Helper()
	return must[[]control.Port](t)(h.api.Ports(t.Context()))
}

// flagLive is for changes of a running guest.
const flagLive = uint32(libvirt.DomainDeviceModifyLive)

func TestLibvirtGuestLives(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{Guests: 1})
	h.checkConsistent(t)
	dom := h.create(t, oneNIC("a", 1), "vnet1")
	// That it runs is an event of its own.
	h.awaitPortIs(t, "vnet1", "running", func(p control.Port) bool { return p.Guest != nil && !p.Guest.Paused })
	p := h.port(t, "vnet1")
	want := control.Guest{Domain: "a", Alias: "net0", MAC: must[vswitch.MAC](t)(vswitch.ParseMAC(guestAddr(1))), Model: "virtio", Queues: 1}
	want.UUID = p.Guest.UUID
	if *p.Guest != want || len(want.UUID) != 36 {
		t.Errorf("the guest is %+v, want %+v", *p.Guest, want)
	}
	if st, err := h.api.Status(t.Context()); err != nil || !st.Libvirt.Connected || st.Libvirt.Domains != 1 || st.Libvirt.Guests != 1 {
		t.Errorf("status is %+v (%v)", st.Libvirt, err)
	}
	if g := h.port(t, "vnet0").Guest; g != nil {
		t.Errorf("a tap that is not libvirt's is taken for %+v", g)
	}
	h.checkConsistent(t)

	check(t, h.conn.DomainSuspend(dom))
	h.awaitPortIs(t, "vnet1", "paused", func(p control.Port) bool { return p.Guest != nil && p.Guest.Paused })
	check(t, h.conn.DomainResume(dom))
	h.awaitPortIs(t, "vnet1", "running", func(p control.Port) bool { return p.Guest != nil && !p.Guest.Paused })
	check(t, h.conn.DomainReset(dom, 0))
	h.awaitFast(t, "vnet1")
	if now := h.port(t, "vnet1"); now.Ifindex != p.Ifindex || now.Guest == nil || *now.Guest != want {
		t.Errorf("after a reset the port is %+v", now)
	}

	// Its link goes down for the guest alone; the bridge still sends to the tap.
	more := "<link state='%s'/><target dev='vnet1'/><alias name='net0'/>"
	for _, state := range []string{"down", "up"} {
		check(t, h.conn.DomainUpdateDeviceFlags(dom, libvirtd.BridgeInterface(guestAddr(1), lab.BridgeDev, fmt.Sprintf(more, state)), libvirt.DomainDeviceModifyFlags(flagLive)))
		h.awaitGuest(t, "vnet1", "a")
		h.awaitFast(t, "vnet1")
		h.checkConsistent(t)
	}

	// To another bridge, by the definition.
	h.ip(t, "link add br1 type bridge forward_delay 0")
	h.ip(t, "link set br1 up")
	for _, bridge := range []string{"br1", lab.BridgeDev} {
		check(t, h.conn.DomainUpdateDeviceFlags(dom, libvirtd.BridgeInterface(guestAddr(1), bridge, "<target dev='vnet1'/><alias name='net0'/>"), libvirt.DomainDeviceModifyFlags(flagLive)))
		h.awaitPortIs(t, "vnet1", "the guest's in "+bridge, func(now control.Port) bool {
			return now.Bridge == bridge && now.State == control.StateFast && now.Ifindex == p.Ifindex && now.Guest != nil && now.Guest.Domain == "a"
		})
		h.checkConsistent(t)
	}
	h.destroy(t, dom, "vnet1")
	h.checkConsistent(t)
}

// A NIC that is plugged in while the guest runs is fast, and known.
func TestLibvirtHotPlug(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	dom := h.create(t, oneNIC("a", 1), "vnet0")
	for n := 2; n <= 3; n++ {
		check(t, h.conn.DomainAttachDeviceFlags(dom, libvirtd.BridgeInterface(guestAddr(n), lab.BridgeDev, ""), flagLive))
		port := fmt.Sprint("vnet", n-1)
		h.awaitGuest(t, port, "a")
		h.awaitFast(t, port)
		if g := h.port(t, port).Guest; g == nil || g.MAC.String() != guestAddr(n) || g.Alias != fmt.Sprint("net", n-1) {
			t.Errorf("%s is %+v", port, g)
		}
		h.checkConsistent(t)
	}
	h.destroy(t, dom, "vnet0", "vnet1", "vnet2")
	h.checkConsistent(t)
}

// A guest comes back from a file with another tap.
func TestLibvirtSaveRestore(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	dom := h.create(t, oneNIC("a", 1), "vnet0")
	before := h.port(t, "vnet0")
	file := h.virt.Dir() + "/a.save"
	check(t, h.conn.DomainSave(dom, file))
	h.awaitNoPort(t, "vnet0")
	h.checkConsistent(t)
	check(t, h.conn.DomainRestore(file))
	var after control.Port
	eventually(t, 20*time.Second, "the guest is back", func() bool {
		ports := h.ports(t)
		i := slices.IndexFunc(ports, func(p control.Port) bool { return p.Guest != nil })
		if i >= 0 {
			after = ports[i]
		}
		return i >= 0
	})
	if after.Guest.UUID != before.Guest.UUID || after.Ifindex == before.Ifindex {
		t.Errorf("the guest was %+v on %d, is %+v on %d", before.Guest, before.Ifindex, after.Guest, after.Ifindex)
	}
	h.awaitFast(t, after.Name)
	h.checkConsistent(t)
	h.destroy(t, dom, after.Name)
}

// The port of a guest that starts is fast before libvirt says that it has started.
func TestLibvirtFastBeforeStarted(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	events := must[<-chan libvirt.DomainEventLifecycleMsg](t)(h.conn.LifecycleEvents(t.Context()))
	type event struct {
		libvirt.Domain
		at time.Time
	}
	started := make(chan event, 1)
	go func() {
		for e := range events {
			if e.Event == int32(libvirt.DomainEventStarted) {
				started <- event{e.Dom, time.Now()}
			}
		}
	}()
	var took, lead []time.Duration
	for i := range 20 {
		created := make(chan error, 1)
		go func() {
			_, err := h.conn.DomainCreateXML(oneNIC(fmt.Sprint("guest", i), 1).XML(), 0)
			created <- err
		}()
		check(t, h.Host.WaitUntil(within(t, 20*time.Second), "the tap is there", func(n *netlink.Handle) (bool, error) {
			_, err := n.LinkByName(fmt.Sprint("vnet", i))
			return err == nil, nil
		}))
		there := time.Now()
		h.awaitFast(t, fmt.Sprint("vnet", i))
		fast := time.Now()
		check(t, <-created)
		e := <-started
		took, lead = append(took, fast.Sub(there)), append(lead, e.at.Sub(fast))
		if e.at.Before(fast) {
			t.Errorf("start %d: the port was fast %v after libvirt's event", i, fast.Sub(e.at))
		}
		h.destroy(t, e.Domain, fmt.Sprint("vnet", i))
	}
	slices.Sort(took)
	slices.Sort(lead)
	t.Logf("from the tap to the fast port it takes %v (median of %d, most %v), and libvirt's event comes %v later (least %v)",
		took[len(took)/2], len(took), took[len(took)-1], lead[len(lead)/2], lead[0])
}

// A persistent tap outlives its guest, and is nobody's until another takes it.
func TestL1PersistentTapLeftFromBefore(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{Guests: 1})
	h.ip(t, "tuntap add dev tap0 mode tap vnet_hdr")
	h.ip(t, "link set tap0 master br0 up")
	nic := "<interface type='ethernet'><mac address='" + guestAddr(1) + "'/><target dev='tap0' managed='no'/><model type='virtio'/></interface>"
	h.awaitGuest(t, "tap0", "")
	h.awaitPort(t, 5*time.Second, "tap0", control.StateHeld, "no carrier")
	ifindex := h.port(t, "tap0").Ifindex
	var uuids []string
	for _, name := range []string{"a", "b"} {
		dom := must[libvirt.Domain](t)(h.conn.DomainCreateXML(libvirtd.Guest{Name: name, Interfaces: []string{nic}}.XML(), 0))
		h.awaitPortIs(t, "tap0", "fast and the guest's", func(p control.Port) bool {
			return p.State == control.StateFast && p.Guest != nil && p.Guest.Domain == name && p.Ifindex == ifindex
		})
		uuids = append(uuids, h.port(t, "tap0").Guest.UUID)
		h.checkConsistent(t)
		check(t, h.conn.DomainDestroy(dom))
		h.awaitGuest(t, "tap0", "")
		h.awaitPort(t, 5*time.Second, "tap0", control.StateHeld, "no carrier")
	}
	if uuids[0] == uuids[1] {
		t.Errorf("two guests are both %s", uuids[0])
	}
	h.checkConsistent(t)
}

// The numbers of taps begin anew with libvirtd, so names come back.
func TestL2NamesComeBackAfterRestart(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	a := h.create(t, oneNIC("a", 1), "vnet0")
	b := h.create(t, oneNIC("b", 2), "vnet1")
	was := h.port(t, "vnet0").Ifindex
	h.destroy(t, a, "vnet0")
	check(t, h.virt.Kill())
	check(t, h.virt.Run(within(t, 30*time.Second)))
	h.connect(t)
	h.create(t, oneNIC("c", 3))
	var c control.Port
	eventually(t, 20*time.Second, "c has a port", func() bool {
		for _, p := range h.ports(t) {
			if p.Guest != nil && p.Guest.Domain == "c" {
				c = p
			}
		}
		return c.Name != ""
	})
	if c.Ifindex == was {
		t.Errorf("c has the ifindex of a, %d", was)
	}
	h.awaitGuest(t, "vnet1", "b")
	h.awaitFast(t, c.Name, "vnet1")
	h.checkConsistent(t)
	h.destroy(t, b, "vnet1")
	h.checkConsistent(t)
}

// A network's bridge goes and comes back under running guests.
func TestL3NetDestroyUnderRunningGuests(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	network := must[libvirt.Network](t)(h.conn.NetworkDefineXML(
		"<network><name>isolated</name><bridge name='virbr9' stp='off' delay='0'/><forward mode='open'/><dns enable='no'/><ip address='198.18.9.1' prefix='24'/></network>"))
	check(t, h.conn.NetworkCreate(network))
	nic := "<interface type='network'><mac address='" + guestAddr(1) + "'/><source network='isolated'/><model type='virtio'/></interface>"
	dom := h.create(t, libvirtd.Guest{Name: "a", Interfaces: []string{nic}}, "vnet0")
	for range 3 {
		check(t, h.conn.NetworkDestroy(network))
		h.awaitNoPort(t, "vnet0")
		h.checkConsistent(t)
		check(t, h.conn.NetworkCreate(network))
		if h.port(t, "vnet0").Name == "" {
			h.ip(t, "link set vnet0 master virbr9") // as libvirtd does when it starts again
		}
		h.awaitGuest(t, "vnet0", "a")
		h.awaitFast(t, "vnet0")
		h.checkConsistent(t)
	}
	h.destroy(t, dom, "vnet0")
}

// Guests that start at once are all known, each as itself.
func TestL12GuestsStartAtOnce(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	const many = 6
	failed := make(chan error)
	for i := range many {
		go func() {
			_, err := h.conn.DomainCreateXML(oneNIC(fmt.Sprint("guest", i), i).XML(), 0)
			failed <- err
		}()
	}
	for range many {
		check(t, <-failed)
	}
	eventually(t, 30*time.Second, "all guests are known", func() bool {
		found := 0
		for _, p := range h.ports(t) {
			if p.Guest != nil {
				found++
				if want := guestAddr(must[int](t)(number(p.Guest.Domain))); p.Guest.MAC.String() != want {
					t.Errorf("%s has %s, want %s", p.Guest.Domain, p.Guest.MAC, want)
				}
			}
		}
		return found == many
	})
	h.checkConsistent(t)
}

func number(name string) (n int, err error) {
	_, err = fmt.Sscanf(name, "guest%d", &n)
	return n, err
}

// Two guests with the same address are told apart, and a port under any name is
// known for its guest's.
func TestLibvirtSameAddressAndRename(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	h.create(t, oneNIC("a", 1), "vnet0")
	b := h.create(t, oneNIC("b", 1), "vnet1")
	h.awaitGuest(t, "vnet0", "a")
	h.checkConsistent(t)
	h.ip(t, "link set vnet0 down")
	h.ip(t, "link set vnet0 name other")
	h.ip(t, "link set other up")
	h.awaitGuest(t, "other", "a")
	h.awaitFast(t, "other", "vnet1")
	h.destroy(t, b, "vnet1")
	// The daemon finds it by its address when it has never seen the name.
	h.stop(t)
	h.start(t, lab.DaemonOptions{Config: labConfig + fmt.Sprintf("\nlibvirt = %q\n", h.virt.Socket)})
	h.awaitGuest(t, "other", "a")
	h.checkConsistent(t)
}

// libvirtd dies and comes back under traffic, and not a frame is lost.
func TestLibvirtRestartsUnderTraffic(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{Guests: 2})
	h.create(t, oneNIC("a", 1), "vnet2")
	streams := map[string]*lab.Stream{
		"into a guest":   stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 1000}),
		"out of a guest": stream(t, h.Guests[0].Node, h.Wire, lab.StreamOptions{Rate: 1000}),
		"between guests": stream(t, h.Guests[0].Node, h.Guests[1].Node, lab.StreamOptions{Rate: 1000}),
	}
	for range 20 {
		check(t, h.virt.Kill())
		eventually(t, 10*time.Second, "the daemon knows that libvirtd is away", func() bool {
			st, err := h.api.Status(t.Context())
			return err == nil && !st.Libvirt.Connected && st.Libvirt.Error != "" && st.Libvirt.Domains == 1
		})
		h.awaitGuest(t, "vnet2", "a")
		check(t, h.virt.Run(within(t, 30*time.Second)))
		eventually(t, 20*time.Second, "the daemon is connected again", func() bool {
			st, err := h.api.Status(t.Context())
			return err == nil && st.Libvirt.Connected
		})
	}
	for name, s := range streams {
		whole(t, name, s)
	}
	h.awaitGuest(t, "vnet2", "a")
	h.awaitFast(t, "vnet0", "vnet1", "vnet2")
	h.checkConsistent(t)
}

// A libvirtd that hangs delays neither ports nor frames.
func TestLibvirtHangs(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{Guests: 1})
	check(t, h.virt.Suspend())
	g, err := h.AddGuest(lab.GuestOptions{})
	check(t, err)
	h.awaitFast(t, g.Port)
	h.checkFast(t, h.Wire, g.Node, lab.NIC, g.Port)
	h.checkConsistent(t)
	check(t, h.virt.Resume())
}

// The guest's address is behind another port at once when it says so there, as
// after a migration, and nothing goes to the old one.
func TestL7MigrationMovesAddress(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{Guests: 1})
	dom := h.create(t, oneNIC("a", 1), "vnet1")
	mac := must[net.HardwareAddr](t)(net.ParseMAC(guestAddr(1)))
	wire := must[*lab.Packet](t)(lab.OpenPacket(h.Wire, lab.WireDev))
	t.Cleanup(func() { wire.Close() })
	// The guest has been here.
	h.bridge(t, "fdb replace "+guestAddr(1)+" dev vnet1 master dynamic")
	sent := func() uint64 { return h.stats(t, "vnet1").FlushedFrames }
	h.checkConsistent(t)
	before := sent()
	check(t, wire.Send(frame(mac, lab.WireMAC, "to the guest here")))
	eventually(t, 5*time.Second, "a frame has gone to the guest", func() bool { return sent() > before })
	// It is elsewhere: a RARP request from the wire, as QEMU sends it.
	check(t, wire.Send(frame(broadcast, mac, "I am here now")))
	check(t, h.Host.WaitFDB(within(t, 5*time.Second), lab.NIC, mac))
	h.checkConsistent(t)
	before = sent()
	there := stream(t, h.Guests[0].Node, h.Wire, lab.StreamOptions{Rate: 1000})
	check(t, wire.Send(frame(mac, lab.WireMAC, "to the guest there")))
	h.awaitRedirects(t, h.Guests[0].Port, there)
	whole(t, "guest to wire", there)
	if n := sent() - before; n > 0 {
		t.Errorf("%d frames went to the port that the guest has left", n)
	}
	h.destroy(t, dom, "vnet1")
	h.checkConsistent(t)
}
