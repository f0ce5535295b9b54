package main

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
)

// Faults that others met, where the whole daemon is needed to show that they are
// not here. docs/parity.md lists them.

// frameTo makes a frame of a given length with a mark behind its header.
func frameTo(dst, src []byte, tag []byte, length int, mark string) []byte {
	f := append(append(append([]byte{}, dst...), src...), tag...)
	f = append(f, 0x88, 0xb5) // an EtherType for experiments
	f = append(f, mark...)
	return append(f, make([]byte, max(0, length-len(f)))...)
}

// newFrameHost starts a daemon on a host whose bridge knows a guest and the wire, and
// opens a socket for whole frames at both.
func newFrameHost(t *testing.T) (h *host, wire, guest *lab.Packet) {
	t.Helper()
	h = newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	ping(t, h.Guests[0].Node, h.Wire)
	open := func(n *lab.Node, dev string) *lab.Packet {
		p, err := lab.OpenPacket(n, dev)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	return h, open(h.Wire, lab.WireDev), open(h.Guests[0].Node, "eth0")
}

// TestD14TaggedFramesArrive sends tagged frames between the wire and a guest, on a
// bridge that is not VLAN-aware: they arrive with their tags, by the fast path.
func TestD14TaggedFramesArrive(t *testing.T) {
	h, wire, guest := newFrameHost(t)
	g := h.Guests[0]
	for i, tag := range [][]byte{{0x81, 0, 0, 10}, {0x81, 0, 0xe0, 0}, {0x88, 0xa8, 0, 7, 0x81, 0, 0, 10}} {
		for _, way := range []struct {
			name     string
			from, to *lab.Packet
			port     string
			src, dst []byte
		}{
			{"into the guest", wire, guest, "nic0", lab.WireMAC, g.MAC},
			{"out of the guest", guest, wire, g.Port, g.MAC, lab.WireMAC},
		} {
			before := h.count(t, way.port, vswitch.Redirected)
			mark := fmt.Sprintf("tagged %d %s", i, way.name)
			sent := frameTo(way.dst, way.src, tag, 100, mark)
			if err := way.from.Send(sent); err != nil {
				t.Fatal(err)
			}
			got, err := way.to.Next(within(t, 10*time.Second), func(f []byte) bool { return bytes.Contains(f, []byte(mark)) })
			if err != nil {
				t.Fatalf("tag %x %s: %v", tag, way.name, err)
			}
			if !bytes.Equal(got.Data, sent) {
				t.Errorf("tag %x %s: got %x, sent %x", tag, way.name, got.Data, sent)
			}
			if n := h.count(t, way.port, vswitch.Redirected) - before; n < 1 {
				t.Errorf("tag %x %s: no frame was redirected", tag, way.name)
			}
		}
	}
}

// TestD16Runts sends frames that are shorter than any real one out of a guest: what
// the tap takes of them goes by the bridge, and arrives as it was.
func TestD16Runts(t *testing.T) {
	h, wire, guest := newFrameHost(t)
	g := h.Guests[0]
	before := h.count(t, g.Port, vswitch.PassShort)
	const shortest, short = 14, 26 // of bytes: Ethernet's header, and what the fast path asks for
	for length := shortest; length < short; length++ {
		sent := frameTo(lab.WireMAC, g.MAC, nil, length, "")
		if err := guest.Send(sent); err != nil {
			t.Fatal(err)
		}
		if _, err := wire.Next(within(t, 10*time.Second), func(f []byte) bool { return bytes.Equal(f, sent) }); err != nil {
			t.Errorf("a frame of %d bytes: %v", length, err)
		}
	}
	if n := h.count(t, g.Port, vswitch.PassShort) - before; n != short-shortest {
		t.Errorf("%d more frames passed as too short, want %d", n, short-shortest)
	}
}
