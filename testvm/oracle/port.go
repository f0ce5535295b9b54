package oracle

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

const (
	ethLen  = 14
	vnetLen = 10 // struct virtio_net_hdr, as packet sockets have it; taps put two more bytes behind it
)

// A portSpec says what a port is like, on both hosts.
type portSpec struct {
	name string
	mtu  int            // of a guest's
	tap  lab.TapOptions // of a guest's
}

const uplink = 0 // the number of the port that leads to the wire

// complete says that frames into the port must need no offload.
func (s portSpec) complete() bool { return !s.tap.VnetHdr }

// specs are the ports of each host, by number: guests that take offloads, that
// know of no virtio-net header, with a larger and with a smaller MTU.
var specs = []portSpec{
	uplink: {name: lab.NIC},
	{name: "vnet0", mtu: 1500, tap: lab.TapOptions{VnetHdr: true, Offloads: true}},
	{name: "vnet1", mtu: 1500},
	{name: "vnet2", mtu: 9000, tap: lab.TapOptions{VnetHdr: true, Offloads: true}},
	{name: "vnet3", mtu: 1280, tap: lab.TapOptions{VnetHdr: true}},
	{name: "vnet4", mtu: 1500, tap: lab.TapOptions{VnetHdr: true, Offloads: true}},
}

// A port is a port of one host's bridge, driven by the test in a guest's or the
// outside's place.
type port struct {
	spec    portSpec
	ifindex int
	*feed            // what comes out
	tap     *lab.Tap // nil: the uplink
	wire    *socket  // at the far end of the uplink
	scratch []byte
	// hooked counts the frames that met the ingress hook.
	hooked uint64
}

// send puts a frame into the port and says whether the device took it. The error
// is about the test's own means.
func (p *port) send(header *[vnetLen]byte, data []byte) (taken bool, err error) {
	b := p.scratch[:0]
	if p.tap == nil || p.spec.tap.VnetHdr {
		b = append(b, header[:]...)
	}
	if p.spec.tap.VnetHdr {
		b = append(b, make([]byte, lab.VnetHdrLen-vnetLen)...)
	}
	b = append(b, data...)
	p.scratch = b
	if p.tap == nil {
		_, err = p.wire.file.Write(b)
	} else {
		_, err = p.tap.Write(b)
	}
	if err != nil && !refused(err) {
		return false, fmt.Errorf("putting a frame into %s: %w", p.spec.name, err)
	}
	return err == nil, nil
}

// openTap makes a guest's port.
func openTap(n *lab.Node, spec portSpec) (*port, error) {
	tap, err := lab.OpenTap(n, spec.name, spec.tap)
	if err != nil {
		return nil, err
	}
	f := &feed{box: newInbox()}
	if f.raw, err = tap.SyscallConn(); err != nil {
		tap.Close()
		return nil, fmt.Errorf("opening %s: %w", spec.name, err)
	}
	b := make([]byte, lab.VnetHdrLen+lab.MaxFrameLen)
	none := make([]byte, vnetLen)
	f.receive = func(fd int) error {
		n, err := unix.Read(fd, b)
		switch {
		case err != nil:
			return err
		case spec.tap.VnetHdr:
			f.box.add(b[:vnetLen], b[lab.VnetHdrLen:n])
		default:
			f.box.add(none, b[:n])
		}
		return nil
	}
	return &port{spec: spec, feed: f, tap: tap}, nil
}

// close takes a tap away; the uplink's end is one of the host's sockets.
func (p *port) close() error {
	if p.tap == nil {
		return nil
	}
	if err := p.tap.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("closing %s: %w", p.spec.name, err)
	}
	return nil
}
