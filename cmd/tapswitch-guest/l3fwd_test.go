package main

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/livegen"
)

// newRouter is a bench whose guest routes between eth0, where 198.18.0.1 is, and eth1,
// where 198.19.0.1 is: the addresses of livegen's frames.
func newRouter(t *testing.T) *bench {
	b := newBench(t)
	for i, dev := range []string{"eth0", "eth1"} {
		b.want(b.node.SetOffload(dev, lab.RxVLAN, false))
		b.want(b.node.WaitRunning(t.Context(), dev))
		link, err := b.node.Link(dev)
		b.want(err)
		station := netip.AddrFrom4([4]byte{198, byte(18 + i), 0, 1})
		_, host, err := net.ParseCIDR(station.String() + "/32")
		b.want(err)
		b.want(b.node.AddAddr(dev, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 1, byte(1 + i)}), 32)))
		b.want(b.node.Netlink().RouteAdd(&netlink.Route{Dst: host, LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK}))
		b.want(b.node.Netlink().NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: host.IP, HardwareAddr: farMACs[i], State: netlink.NUD_PERMANENT,
		}))
	}
	b.want(b.node.SetSysctl("net/ipv4/ip_forward", "1"))
	for _, far := range []string{"far0", "far1"} { // stations
		b.want(b.node.SetSysctl("net/ipv4/conf/"+far+"/forwarding", "0"))
	}
	return b
}

func (b *bench) want(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// checkRouted sends frames both ways: all arrive, each one hop older.
func (b *bench) checkRouted() {
	b.Helper()
	there := udp(guestMACs[0], farMACs[0], 100)
	for _, f := range b.send(0, there, many, 1, many) {
		if want := aged(udp(farMACs[1], guestMACs[1], 100)); !slices.Equal(f.Data, want) {
			b.Fatalf("the frame came as\n%x, want\n%x", f.Data, want)
		}
	}
	back := livegen.UDPFrame([6]byte(guestMACs[1]), [6]byte(farMACs[1]), 100)
	copy(back[26:], []byte{198, 19, 0, 1, 198, 18, 0, 1})
	b.send(1, back, many, 0, many)
}

// aged is a frame with a TTL that is lower by one.
func aged(f []byte) []byte {
	f[22]--
	f[24]++ // of the checksum, which has no carry here
	return f
}

func TestL3fwdByFIB(t *testing.T) {
	b := newRouter(t)
	b.must("", "attach", "l3fwd", "eth0", "eth1", "--fib")
	b.checkRouted()
	for _, dev := range []string{"eth0", "eth1"} {
		// The first one goes through the stack, to show it that the neighbour is in use.
		if a := b.stats(dev); frames(a, "forward") < many-1 || frames(a, "pass_refresh") > 1 {
			t.Errorf("the counters of %s are %+v", dev, a)
		}
	}
	if out := b.must("", "status"); !strings.Contains(out, "l3fwd_fib") || !strings.Contains(out, "to eth1") {
		t.Errorf("the status is\n%s", out)
	}
	if out := b.must("", "detach", "eth1"); out != "detached eth0\ndetached eth1\n" {
		t.Errorf("detaching said %q", out)
	}
}

func TestL3fwdByRoutes(t *testing.T) {
	b := newRouter(t)
	follow := func() (end func() string) {
		ctx, cancel := context.WithCancel(t.Context())
		ready, ended := make(chan struct{}), make(chan string, 1)
		var out bytes.Buffer
		go b.node.Do(func() error {
			e := &env{stdin: strings.NewReader(""), stdout: &out, stderr: &out, after: time.After, ready: func() { close(ready) }}
			e.run(ctx, []string{"attach", "l3fwd", "eth0", "eth1", "--routes", "--foreground"})
			ended <- out.String()
			return nil
		})
		select {
		case <-ready:
		case errs := <-ended:
			t.Fatal(errs)
		}
		return func() string { cancel(); return <-ended }
	}
	end := follow()
	b.checkRouted()
	if a := b.stats("eth0"); frames(a, "forward") < many-1 {
		t.Errorf("the counters are %+v", a)
	}
	if errs := end(); errs != "" {
		t.Error(errs)
	}
	if out := b.must("", "status"); out != "nothing is attached\n" {
		t.Errorf("after its end the status is %q", out)
	}

	// What else is attached takes the devices from it.
	end = follow()
	b.must("", "attach", "l3fwd", "eth0", "eth1", "--fib")
	defer end()
	b.checkRouted()
}
