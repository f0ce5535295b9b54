package main

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// Frames that a NIC has received together reach the guest together: the fast path
// is fast because the kernel takes a tap's lock for up to 16 frames at once.
func TestBulk(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	g := h.Guests[0]
	ping(t, h.Wire, g.Node)
	conn, err := h.Wire.ListenPacket("udp4", lab.WireAddr4.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The sender's stack cuts one datagram into many frames, with the interrupt
	// held off: a burst, as it comes from a wire.
	const segment, segments = 100, 64
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err == nil {
		ctlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, segment)
		})
		if err == nil {
			err = ctlErr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	sink, err := g.ListenPacket("udp4", g.Addr4.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	sink.SetReadDeadline(time.Now().Add(20 * time.Second))
	before := h.stats(t, g.Port)
	datagram := make([]byte, segment)
	for range 100 {
		if _, err := conn.WriteTo(make([]byte, segment*segments), sink.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		for i := range segments {
			if _, _, err := sink.ReadFrom(datagram); err != nil {
				t.Fatalf("%d of %d frames came: %v", i, segments, err)
			}
		}
	}
	after := h.stats(t, g.Port)
	flushes, frames := after.Flushes-before.Flushes, after.FlushedFrames-before.FlushedFrames
	mean := float64(frames) / float64(flushes)
	t.Logf("%d frames in %d flushes: %.1f at once", frames, flushes, mean)
	if mean <= 8 {
		t.Errorf("the kernel hands the guest %.1f frames at once, want more than 8", mean)
	}
	st, err := h.api.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Datapath.FramesPerFlush <= 8 {
		t.Errorf("the status has %.1f frames at once, want more than 8", st.Datapath.FramesPerFlush)
	}
}
