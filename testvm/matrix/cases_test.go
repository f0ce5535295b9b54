package matrix

import (
	"bytes"
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// The tests here are of faults that were seen in other systems; docs/parity.md
// lists all of them.

func named(t *testing.T, name string) traffic {
	t.Helper()
	for _, k := range kinds {
		if k.name == name {
			k.port = 5100
			return k
		}
	}
	t.Fatalf("there is no kind %s", name)
	return traffic{}
}

// TestD1PartialChecksumIntoTap: a guest leaves its checksum to the host, and the
// receiver takes complete frames alone.
func TestD1PartialChecksumIntoTap(t *testing.T) {
	for _, m := range []mode{tcx, xdp} {
		h := newHost(t, m, false, mtu, nil)
		h.send(t, way{sender, receiver}, named(t, "partial TCPv4"), false)
		h.send(t, way{sender, wire}, named(t, "partial TCPv6"), false)
	}
}

// TestD2TCPBothWays: pings work and TCP stalls. Real stacks, with all offloads.
func TestD2TCPBothWays(t *testing.T) {
	streams(t, lab.Options{Guests: 2}, lab.NICConfig, 100<<20)
}

// TestD3DHCPReply: a DHCP server leaves its checksum to the host.
func TestD3DHCPReply(t *testing.T) {
	h := newHost(t, tcx, false, mtu, nil)
	k := named(t, "partial UDPv4")
	k.port = 67
	h.send(t, way{sender, receiver}, k, false)
	h.send(t, way{wire, receiver}, k, false)
}

// TestD4VethWithOffloads: a stack sends into a veth, which is the uplink, what no
// wire carries.
func TestD4VethWithOffloads(t *testing.T) {
	streams(t, lab.Options{Guests: 2, WireOffloads: true}, `uplinks = ["nic0"]`, 20<<20)
}

// streams moves bytes both ways between a guest and the wire, and between two
// guests.
func streams(t *testing.T, o lab.Options, config string, size int64) {
	t.Helper()
	l, err := lab.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	d, err := l.Host.StartDaemon(ctx, lab.DaemonOptions{Path: daemonPath, Config: config, Name: "streams"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	guest, other := l.Guests[0].Node, l.Guests[1].Node
	for _, pair := range [][2]*lab.Node{{guest, l.Wire}, {l.Wire, guest}, {guest, other}} {
		var addr netip.Addr
		if addr, err = pair[1].Addr(false); err != nil {
			t.Fatal(err)
		}
		if _, err := lab.Fetch(ctx, pair[0], pair[1], addr, size); err != nil {
			t.Error(err)
		}
	}
}

// TestD5SegmentsAndMTU: segments of any MTU, each as long as it allows, and one
// byte longer.
func TestD5SegmentsAndMTU(t *testing.T) {
	for _, mtu := range []int{1450, 9000} {
		for _, offloads := range []bool{true, false} {
			// A veth with an MTU of 9000 must have no XDP.
			h := newHost(t, tcx, offloads, mtu, nil)
			for _, w := range ways {
				for _, k := range kinds {
					k.port = 5100
					if k.tunnel || k.impossible(h, tcx, w) != "" {
						continue
					}
					headers := ipLen(k.v6) + map[bool]int{false: 20, true: 8}[k.udp]
					k.size = mtu - headers
					if k.segment != 0 {
						k.segment, k.size = k.size, 40000
					}
					h.cell(t, tcx, w, k, offloads)
				}
			}
		}
	}
}

// TestD7NoNICIsTarget: a NIC with fewer queues than CPUs, or whose driver takes no
// redirected frames, loses them. A guest's frames leave a NIC by tc, from whatever
// hook they came.
func TestD7NoNICIsTarget(t *testing.T) {
	h := newHost(t, xdp, false, mtu, nil)
	h.cell(t, xdp, way{sender, wire}, named(t, "complete UDPv4"), false)
}

// TestD13ReflectedFrame: a guest's own frame comes back by the uplink, and the
// bridge learns the guest there. Its next frame puts that right, and a static entry
// never moves.
func TestD13ReflectedFrame(t *testing.T) {
	from, to := stations[sender].mac, stations[receiver].mac
	for _, m := range []mode{plain, tcx} {
		h := newHost(t, m, false, mtu, func(h *host) error {
			return h.do([]string{"bridge fdb replace " + from.String() + " dev nic0 master dynamic"})
		})
		if out := h.pass(t, from, to); !slices.Equal(out, []string{receiver}) {
			t.Errorf("%s: the guest's frame came out at %q", m, out)
		}
		if m == plain {
			continue
		}
		if got := h.counts(t, sender).first; got[vswitch.PassLearn] != 1 {
			t.Errorf("its verdict is %v, want it to be left to the bridge to learn", slices.Collect(maps.Keys(got)))
		}
		h.awaitEntry(t, from, sender)
	}
}

// TestD15FramesUnchanged: a redirect that changes addresses connects, and then
// nobody answers.
func TestD15FramesUnchanged(t *testing.T) {
	for _, m := range []mode{tcx, xdp} {
		h := newHost(t, m, false, mtu, nil)
		for _, w := range ways {
			k := named(t, "complete TCPv4")
			want, _ := k.frames(stations[w.from], stations[w.to], framesPerCell)
			got, _ := h.send(t, w, k, false)
			for i := range got {
				if !bytes.Equal(got[i].data, want[i].data) {
					t.Errorf("%s by %s: a frame has changed:\n%x, sent\n%x", w, m, got[i].data, want[i].data)
				}
			}
		}
	}
}
