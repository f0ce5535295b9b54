package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// sink makes a tap a port, behind which a station is that only listens, when
// somebody reads.
func (h *host) sink(t *testing.T, name string, station int, o lab.TapOptions) *lab.Tap {
	t.Helper()
	tap, err := lab.OpenTap(h.Host, name, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tap.Close() })
	// Multicast reports of the host would take places in the tap's queue.
	if err := h.Host.SetSysctl("net/ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	if err := h.Plug(name); err != nil {
		t.Fatal(err)
	}
	h.awaitFast(t, name)
	h.bridge(t, fmt.Sprintf("fdb replace %s dev %s master static", stationMAC(station), name))
	return tap
}

// lost gives the frames lost on the way to a port for a reason.
func (h *host) lost(t *testing.T, port, reason string) (n uint64) {
	t.Helper()
	drops, err := h.api.Drops(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range drops {
		if d.Port == port && d.Reason == reason {
			n += d.Frames
		}
	}
	return n
}

// drain counts the frames of a content that wait in a tap.
func drain(t *testing.T, tap *lab.Tap, want []byte) (n int) {
	t.Helper()
	buffer := make([]byte, 2048)
	for {
		// What is there is read all the same.
		tap.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		length, err := tap.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(buffer[:length], want) {
			n++
		}
	}
}

// Frames that a slow guest has no room for are lost, as they are by the bridge,
// but none without a count.
func TestLossesOfFullRing(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	tap := h.sink(t, "vnet9", 1, lab.TapOptions{})
	h.ip(t, "link set vnet9 txqueuelen 8")
	wire, err := lab.OpenPacket(h.Wire, lab.WireDev)
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	f := frame(stationMAC(1), lab.WireMAC, "more than fit")
	send := func() {
		if err := wire.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	send() // which the bridge learns from, and the fast path follows
	if err := h.Host.WaitFDB(within(t, 5*time.Second), lab.NIC, lab.WireMAC); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "frames are redirected", func() bool {
		send()
		return h.count(t, lab.NIC, vswitch.Redirected) > 0
	})
	drain(t, tap, f)
	const sent = 100
	redirected, lost := h.count(t, lab.NIC, vswitch.Redirected), h.lost(t, "vnet9", "ring full")
	for range sent {
		send()
	}
	eventually(t, 5*time.Second, "all frames have met a verdict", func() bool {
		return h.count(t, lab.NIC, vswitch.Redirected) == redirected+sent
	})
	received := drain(t, tap, f)
	if received != 8 {
		t.Errorf("%d frames fit into a ring of 8", received)
	}
	eventually(t, time.Second, "every frame is received or counted as lost", func() bool {
		return h.lost(t, "vnet9", "ring full")-lost+uint64(received) == sent
	})
	lost = h.lost(t, "vnet9", "ring full")
	st, err := h.api.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Totals.Lost != lost {
		t.Errorf("%d frames were lost in total, %d of them in the ring", st.Totals.Lost, lost)
	}
	name := fmt.Sprintf(`tapswitch_lost_frames_total{ifindex="%d",port="vnet9",reason="ring full"}`, h.ifindex(t, "vnet9"))
	if n := h.metric(t, name); n != float64(lost) {
		t.Errorf("%s is %v, want %d", name, n, lost)
	}
}

// Between a change of a device and the daemon's notice of it frames may be lost,
// but none without a count.
func TestLossesBeforeNotice(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: longLease})
	wire, err := lab.OpenPacket(h.Wire, lab.WireDev)
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	for i, tt := range []struct {
		reason string
		size   int
		change func(name string, tap *lab.Tap)
	}{
		{"no queue", 60, func(_ string, tap *lab.Tap) { tap.Close() }},
		{"device down", 60, func(name string, _ *lab.Tap) { h.ip(t, "link set "+name+" down") }},
		{"too long", 1400, func(name string, _ *lab.Tap) { h.ip(t, "link set "+name+" mtu 1000") }},
	} {
		name := fmt.Sprintf("vnet%d", 10+i)
		tap := h.sink(t, name, i, lab.TapOptions{Persist: true})
		f := append(frame(stationMAC(i), lab.WireMAC, tt.reason), make([]byte, tt.size-60)...)
		before := h.count(t, lab.NIC, vswitch.Redirected)
		eventually(t, 5*time.Second, "frames are redirected", func() bool {
			if err := wire.Send(f); err != nil {
				t.Fatal(err)
			}
			return h.count(t, lab.NIC, vswitch.Redirected) > before
		})
		before = h.count(t, lab.NIC, vswitch.Redirected)
		h.suspend(t)
		tt.change(name, tap)
		const sent = 50
		for range sent {
			if err := wire.Send(f); err != nil {
				t.Fatal(err)
			}
		}
		h.resume()
		eventually(t, 5*time.Second, "all frames have met a verdict", func() bool {
			return h.count(t, lab.NIC, vswitch.Redirected) >= before+sent
		})
		if n := h.count(t, lab.NIC, vswitch.Redirected) - before; n != sent {
			t.Errorf("%s: %d of %d frames were redirected: %v", tt.reason, n, sent, h.verdicts(t, lab.NIC))
		}
		if n := h.lost(t, name, tt.reason); n != sent {
			drops, err := h.api.Drops(t.Context())
			t.Errorf("%s: %d of %d frames are counted: %+v (%v)", tt.reason, n, sent, drops, err)
		}
	}
}

// What tc has redirected may be dropped by a qdisc or by the device, which must
// show too.
func TestLossesBehindTC(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{Config: longLease})
	g := h.Guests[0]
	h.sink(t, "vnet9", 1, lab.TapOptions{})
	h.ip(t, "link set vnet9 txqueuelen 8")
	out, err := lab.OpenPacket(g.Node, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	f := frame(stationMAC(1), g.MAC, "more than fit")
	eventually(t, 5*time.Second, "frames are redirected", func() bool {
		if err := out.Send(f); err != nil {
			t.Fatal(err)
		}
		return h.count(t, g.Port, vswitch.Redirected) > 0
	})
	eventually(t, 5*time.Second, "frames are lost in the device", func() bool {
		if err := out.Send(f); err != nil {
			t.Fatal(err)
		}
		return h.lost(t, "vnet9", "device") > 0
	})
	before, redirected := h.lost(t, "vnet9", "device"), h.count(t, g.Port, vswitch.Redirected)
	const sent = 50
	for range sent {
		if err := out.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 5*time.Second, "all are redirected, and counted as lost", func() bool {
		return h.count(t, g.Port, vswitch.Redirected) >= redirected+sent && h.lost(t, "vnet9", "device") >= before+sent
	})
	if n := h.lost(t, "vnet9", "qdisc") + h.lost(t, "vnet9", "ring full"); n != 0 {
		t.Errorf("%d frames are counted for other reasons", n)
	}
}

// Frames that meet a hook on a device that the datapath does not know are shown.
func TestUnclaimedFramesShow(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	stats, err := h.api.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	none := stats[len(stats)-1]
	if none.Ifindex != 0 || len(none.Verdicts) != 1 || none.Verdicts[0].Verdict != vswitch.PassNoPort {
		t.Errorf("the last of the stats is %+v, want those of no port", none)
	}
}
