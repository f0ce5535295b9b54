package main

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// openNumbered opens a new tap with the given ifindex. The kernel gives each number
// once by itself, but whoever makes a device may choose one.
func (h *host) openNumbered(t *testing.T, name string, ifindex int) int {
	t.Helper()
	fd := -1
	err := h.Host.Do(func() (err error) {
		// A tap is in the network namespace in which its file was opened.
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETIFINDEX, ifindex); err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	if err != nil {
		unix.Close(fd)
		t.Fatal(err)
	}
	return fd
}

// A thousand taps come and go under one name and one number, faster than the daemon
// hears of them, and the last is served like the first.
func TestThousandTapsOfOneNumber(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	const number = 1000
	through := stream(t, h.Wire, h.Guests[0].Node, lab.StreamOptions{Rate: 1000})
	for round := range 1000 {
		fd := h.openNumbered(t, "vnet9", number)
		if err := h.Plug("vnet9"); err != nil {
			t.Fatal(err)
		}
		// Now and then the daemon hears of the end of one and of the next at once.
		if round%20 == 19 {
			h.awaitPort(t, 10*time.Second, "vnet9", control.StateFast, "")
			h.suspend(t)
			if err := unix.Close(fd); err != nil {
				t.Fatal(err)
			}
			fd = h.openNumbered(t, "vnet9", number)
			if err := h.Plug("vnet9"); err != nil {
				t.Fatal(err)
			}
			h.resume()
			eventually(t, 10*time.Second, "a program is on the new vnet9", func() bool {
				return h.port(t, "vnet9").State == control.StateFast && len(h.programsOn(t)) == 4
			})
		}
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
	}
	h.await(t, 10*time.Second, "vnet9 is gone", func() bool { return h.port(t, "vnet9").Name == "" })
	h.checkConsistent(t)
	whole(t, "wire to the other guest", through)
}
