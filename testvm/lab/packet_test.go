package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rawFrame is an Ethernet frame of the local experimental type with a text in it.
func rawFrame(to, from []byte, tags []uint16, text string) []byte {
	f := append(bytes.Clone(to), from...)
	for _, tag := range tags {
		f = binary.BigEndian.AppendUint16(f, unix.ETH_P_8021Q)
		f = binary.BigEndian.AppendUint16(f, tag)
	}
	f = binary.BigEndian.AppendUint16(f, 0x88b5)
	f = append(f, text...)
	for len(f) < 60 {
		f = append(f, 0)
	}
	return f
}

func testPacket(t *testing.T, n *Node, dev string) *Packet {
	t.Helper()
	p, err := OpenPacket(n, dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func experimental(f []byte) bool { return bytes.Contains(f, []byte{0x88, 0xb5, 'n', 'o'}) }

func TestPacketFramesCrossTheBridgeUnchanged(t *testing.T) {
	l := testLab(t, Options{Guests: 1})
	g := l.Guests[0]
	wire, guest := testPacket(t, l.Wire, WireDev), testPacket(t, g.Node, "eth0")
	guest.Keep(experimental)
	wire.Keep(experimental)
	broadcast := bytes.Repeat([]byte{0xff}, 6)
	var sent [][]byte
	for i := range 100 {
		to := [][]byte{g.MAC, broadcast, {1, 0, 0x5e, 1, 2, 3}, {2, 0, 0, 0, 9, 9}}[i%4]
		tags := [][]uint16{nil, {5}, {0x6064, 7}}[i%3]
		sent = append(sent, rawFrame(to, WireMAC, tags, fmt.Sprintf("no %d", i)))
	}
	for _, f := range sent {
		if err := wire.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	got, err := guest.Collect(testContext(t), len(sent))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(sent) {
		t.Fatalf("collected %d frames, want %d", len(got), len(sent))
	}
	for i, f := range got {
		if !bytes.Equal(f.Data, sent[i]) {
			t.Errorf("frame %d is\n%x, want\n%x", i, f.Data, sent[i])
		}
		want := []uint8{unix.PACKET_HOST, unix.PACKET_BROADCAST, unix.PACKET_MULTICAST, unix.PACKET_OTHERHOST}[i%4]
		if f.PacketType != want {
			t.Errorf("frame %d is of type %d, want %d", i, f.PacketType, want)
		}
	}
	if mine := wire.Frames(); len(mine) != 0 {
		t.Errorf("the sender collected %d of its own frames", len(mine))
	}
	back := rawFrame(WireMAC, g.MAC, nil, "no back")
	if err := guest.Send(back); err != nil {
		t.Fatal(err)
	}
	f, err := wire.Next(testContext(t), func(f []byte) bool { return bytes.Contains(f, []byte("back")) })
	if err != nil || !bytes.Equal(f.Data, back) {
		t.Errorf("got %x (%v), want %x", f.Data, err, back)
	}
	if n, err := guest.Dropped(); n != 0 || err != nil {
		t.Errorf("%d frames were dropped (%v)", n, err)
	}
}

func TestPacketTellsMissingChecksums(t *testing.T) {
	for _, offloads := range []bool{true, false} {
		l := testLab(t, Options{Guests: 1, Guest: GuestOptions{NoOffloads: !offloads}})
		g := l.Guests[0]
		p := testPacket(t, l.Wire, WireDev)
		s, err := StartStream(g.Node, l.Wire, StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Next(testContext(t), func(f []byte) bool { return len(f) == 14+20+8+64 && f[23] == unix.IPPROTO_UDP })
		if err != nil {
			t.Fatal(err)
		}
		if f.NoChecksum != offloads {
			t.Errorf("with offloads=%v a guest's frame has NoChecksum=%v", offloads, f.NoChecksum)
		}
		s.Stop()
	}
}

// TestWireCarriesWhatWiresCarry looks at bulk TCP as the host's NIC receives it,
// before any GRO.
func TestWireCarriesWhatWiresCarry(t *testing.T) {
	for _, offloads := range []bool{false, true} {
		l := testLab(t, Options{WireOffloads: offloads})
		nic := testPacket(t, l.Host, NIC)
		if _, err := Fetch(testContext(t), l.Host, l.Wire, WireAddr4, 1<<20); err != nil {
			t.Fatal(err)
		}
		large, unfinished := 0, 0
		for _, f := range nic.Frames() {
			if len(f.Data) > 1514 {
				large++
			}
			if f.NoChecksum {
				unfinished++
			}
		}
		if (large > 0) != offloads || (unfinished > 0) != offloads {
			t.Errorf("with WireOffloads=%v, %d frames are too long and %d have no checksum", offloads, large, unfinished)
		}
	}
}

func TestPacketErrors(t *testing.T) {
	l := testLab(t, Options{})
	p := testPacket(t, l.Wire, WireDev)
	if err := p.Send(make([]byte, 1519)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a long frame: %v, want EMSGSIZE", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	never := func([]byte) bool { return false }
	if _, err := p.Next(ctx, never); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no frame: %v, want the context's error", err)
	}
	if _, err := p.Collect(ctx, 1000); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no frames: %v, want the context's error", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Next(t.Context(), never); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v, want os.ErrClosed", err)
	}
	if _, err := OpenPacket(l.Wire, "none"); err == nil {
		t.Error("a device that is not there was opened")
	}
}
