package guestbpf

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"
	"testing"
)

// FuzzRtnetlink reads what the kernel might say of routes, neighbours, devices and rules.
// The seeds in testdata are its own messages.
func FuzzRtnetlink(f *testing.F) {
	f.Fuzz(func(t *testing.T, message []byte) {
		table := newRouteTable(nil)
		p, r, ok, err := readRoute(message)
		if ok && err == nil {
			if !p.IsValid() || p != p.Masked() {
				t.Errorf("the route is to %v", p)
			}
			if e := r.entry(); !r.simple && e != (guestRoute{}) {
				t.Errorf("a route that is the kernel's gave %+v", e)
			}
			table.reset()
			table.appear(p, r, false)
			table.appear(p, r, false)
			table.vanish(p, r)
			if table.doubtful = false; len(table.routes[p]) > 1 {
				t.Errorf("one route became %+v", table.routes)
			}
		}
		neighbours := newNeighbourTable(nil)
		neighbours.hear(syscall.RTM_NEWNEIGH, message)
		neighbours.hear(syscall.RTM_DELNEIGH, message)
		if len(neighbours.macs) > 0 {
			t.Errorf("a neighbour that is gone stays: %v", neighbours.macs)
		}
		isDefaultRule(message)
		_, _ = readDevice(message)
	})
}

// FuzzFrames runs frames through both ways of routing. What is not forwarded stays as it
// is, and what is forwarded is one hop older, with a right checksum.
func FuzzFrames(f *testing.F) {
	for _, c := range frameCases() {
		f.Add(c.frame)
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 3000 { // the kernel runs programs on no others
			return
		}
		frame = append(append([]byte{}, rigMAC(0)...), frame[6:]...)
		err := r.Do(func() error {
			for _, mode := range routingModes {
				got, err := r.run(mode, 0, frame)
				if err != nil {
					return err
				}
				if got.verdict == "forward" {
					want := slices.Clone(frame)
					copy(want, got.frame[:12])
					if want[12] == 8 {
						want[22]--
						setSum(want[14:34])
					} else {
						want[21]--
					}
					if !bytes.Equal(got.frame, want) {
						return fmt.Errorf("%s: %x leaves as\n%x, want\n%x", mode, frame, got.frame, want)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
