package lab

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestTapCarriesFrames(t *testing.T) {
	for name, opts := range map[string]TapOptions{
		"plain":        {},
		"vnet header":  {VnetHdr: true},
		"offloads":     {VnetHdr: true, Offloads: true},
		"plain queues": {MultiQueue: true},
		"vnet queues":  {VnetHdr: true, MultiQueue: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLab(t, Options{NoHostAddr: true})
			tap, err := OpenTap(l.Host, "tap0", opts)
			if err != nil {
				t.Fatal(err)
			}
			defer tap.Close()
			if opts.MultiQueue {
				second, err := OpenTap(l.Host, "tap0", opts)
				if err != nil {
					t.Fatal(err)
				}
				second.Close()
			}
			if err := l.Plug("tap0"); err != nil {
				t.Fatal(err)
			}
			if err := l.Host.WaitRunning(testContext(t), "tap0"); err != nil {
				t.Fatal(err)
			}
			wire := testPacket(t, l.Wire, WireDev)
			header := 0
			if opts.VnetHdr {
				header = VnetHdrLen
			}
			mac := []byte{2, 0, 0, 0, 0, 9}
			out := rawFrame(WireMAC, mac, nil, "no out")
			if _, err := tap.Write(append(make([]byte, header), out...)); err != nil {
				t.Fatal(err)
			}
			if f, err := wire.Next(testContext(t), experimental); err != nil || !bytes.Equal(f.Data, out) {
				t.Errorf("the wire got %x (%v), want %x", f.Data, err, out)
			}
			in := rawFrame(mac, WireMAC, nil, "no in")
			if err := wire.Send(in); err != nil {
				t.Fatal(err)
			}
			tap.SetReadDeadline(time.Now().Add(10 * time.Second))
			b := make([]byte, VnetHdrLen+MaxFrameLen)
			for {
				n, err := tap.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				if got := b[header:n]; experimental(got) {
					if !bytes.Equal(got, in) {
						t.Errorf("the tap got %x, want %x", got, in)
					}
					break
				}
			}
		})
	}
}

func TestTapGoesOrStays(t *testing.T) {
	n := testNode(t, "n")
	for _, opts := range []TapOptions{{}, {VnetHdr: true}, {Persist: true}, {VnetHdr: true, Persist: true}} {
		tap, err := OpenTap(n, "tap0", opts)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tap.Write(make([]byte, 80)); !errors.Is(err, unix.EIO) {
			t.Errorf("%+v: writing to a tap that is down: %v, want EIO", opts, err)
		}
		if err := tap.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := tap.Read(make([]byte, 80)); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%+v: reading a closed tap: %v, want os.ErrClosed", opts, err)
		}
		link, err := n.Link("tap0")
		if gone := errors.As(err, &netlink.LinkNotFoundError{}); gone == opts.Persist {
			t.Errorf("%+v: after Close: %v", opts, err)
		}
		if err == nil {
			if err := n.Netlink().LinkDel(link); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestTapErrors(t *testing.T) {
	n := testNode(t, "n")
	before := openFiles(t)
	if _, err := OpenTap(n, "tap0", TapOptions{Offloads: true}); err == nil {
		t.Error("offloads without header were taken")
	}
	if _, err := OpenTap(n, "a-name-that-is-too-long", TapOptions{VnetHdr: true}); err == nil {
		t.Error("a long name was taken")
	}
	if _, err := OpenTap(n, "lo", TapOptions{VnetHdr: true}); err == nil {
		t.Error("lo was opened as a tap")
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
}
