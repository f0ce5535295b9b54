package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxHeldFrames bounds the memory of a Packet that nobody reads.
const maxHeldFrames = 1 << 18

// Frame is what a Packet received.
type Frame struct {
	// Data from the Ethernet header on, with its VLAN tags. It is no longer than
	// the frame on the wire, but GRO may have made it of several.
	Data []byte
	// PacketType is the kernel's view: unix.PACKET_HOST, PACKET_BROADCAST,
	// PACKET_MULTICAST or PACKET_OTHERHOST.
	PacketType uint8
	// NoChecksum says that the transport checksum isn't filled in yet: the sender
	// left it to an offload.
	NoChecksum bool
}

// Packet sends raw frames out of a device and collects those that the device
// receives, whomever they are for. What XDP redirects or drops on the device
// never gets as far.
type Packet struct {
	dev  string
	file *os.File
	raw  rawConn

	mu      sync.Mutex
	keep    func([]byte) bool
	frames  []Frame
	surplus uint64
	arrived chan struct{} // closed and replaced when a frame was added
	err     error         // why receiving ended
	ended   chan struct{}
}

type rawConn interface {
	Read(func(fd uintptr) bool) error
	Control(func(fd uintptr)) error
}

// OpenPacket starts to collect the frames that a device of the node receives,
// promiscuously. The device must be up for frames to flow either way.
func OpenPacket(n *Node, dev string) (*Packet, error) {
	p := &Packet{dev: dev, arrived: make(chan struct{}), ended: make(chan struct{})}
	if err := p.open(n); err != nil {
		return nil, fmt.Errorf("opening a packet socket on %s in %s: %w", dev, n.name, err)
	}
	go p.receive()
	return p, nil
}

func (p *Packet) open(n *Node) error {
	index, err := n.Ifindex(p.dev)
	if err != nil {
		return err
	}
	fd := -1
	err = n.Do(func() (err error) {
		// No protocol yet: frames of other devices would come before the bind.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := setPacketSocket(fd, index); err != nil {
		unix.Close(fd)
		return err
	}
	p.file = os.NewFile(uintptr(fd), p.dev)
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.file.Close()
		return err
	}
	return nil
}

func setPacketSocket(fd, ifindex int) error {
	if err := growBuffers(fd); err != nil {
		return err
	}
	// The kernel takes the outer VLAN tag out of the frame, and says so in auxdata.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
		return fmt.Errorf("asking for VLAN tags: %w", err)
	}
	mreq := unix.PacketMreq{Ifindex: int32(ifindex), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mreq); err != nil {
		return fmt.Errorf("making the device promiscuous: %w", err)
	}
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifindex, Protocol: all}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return nil
}

// Keep collects only frames of which keep is true, and forgets the others among
// those collected so far. keep must not hold on to its argument.
func (p *Packet) Keep(keep func(frame []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep = keep
	p.frames = slices.DeleteFunc(p.frames, func(f Frame) bool { return !keep(f.Data) })
}

// Send sends one frame, from its Ethernet header on, out of the device. It must
// have 14 bytes or more; the kernel doesn't pad it. The error is EMSGSIZE if the
// frame is longer than the device's MTU, ENETDOWN if the device is down, and
// ENOBUFS if a queue is full.
func (p *Packet) Send(frame []byte) error {
	if _, err := p.file.Write(frame); err != nil {
		return fmt.Errorf("sending a frame of %d bytes out of %s: %w", len(frame), p.dev, err)
	}
	return nil
}

func (p *Packet) receive() {
	defer close(p.ended)
	var (
		buffer  = make([]byte, MaxFrameLen)
		control = make([]byte, 128)
	)
	for {
		var (
			n, controlLen int
			from          unix.Sockaddr
			err           error
		)
		waitErr := p.raw.Read(func(fd uintptr) bool {
			n, controlLen, _, from, err = unix.Recvmsg(int(fd), buffer, control, 0)
			return err != unix.EAGAIN && err != unix.EINTR
		})
		if err == unix.ENETDOWN { // told once when the device goes down
			continue
		}
		if waitErr != nil { // not os.ErrClosed itself, on a raw connection
			err = os.ErrClosed
		}
		if err != nil {
			p.end(err)
			return
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok || ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		f := Frame{PacketType: ll.Pkttype}
		f.Data, f.NoChecksum = restore(buffer[:n], control[:controlLen])
		p.add(f)
	}
}

// restore gives a copy of a frame with the VLAN tag that auxdata holds, and
// whether its checksum is still to be filled in.
func restore(b, control []byte) (data []byte, noChecksum bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return slices.Clone(b), false
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < int(unsafe.Sizeof(auxdata{})) {
			continue
		}
		aux := (*auxdata)(unsafe.Pointer(&m.Data[0]))
		noChecksum = aux.status&unix.TP_STATUS_CSUMNOTREADY != 0
		if aux.status&unix.TP_STATUS_VLAN_VALID != 0 && len(b) >= 12 {
			tpid := aux.vlanTPID
			if aux.status&unix.TP_STATUS_VLAN_TPID_VALID == 0 {
				tpid = unix.ETH_P_8021Q
			}
			data = make([]byte, 0, len(b)+4)
			data = append(data, b[:12]...)
			data = binary.BigEndian.AppendUint16(data, tpid)
			data = binary.BigEndian.AppendUint16(data, aux.vlanTCI)
			return append(data, b[12:]...), noChecksum
		}
	}
	return slices.Clone(b), noChecksum
}

// auxdata is struct tpacket_auxdata.
type auxdata struct {
	status   uint32
	len      uint32
	snaplen  uint32
	mac      uint16
	net      uint16
	vlanTCI  uint16
	vlanTPID uint16
}

func (p *Packet) add(f Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keep != nil && !p.keep(f.Data) {
		return
	}
	if len(p.frames) >= maxHeldFrames {
		p.surplus++
		return
	}
	p.frames = append(p.frames, f)
	close(p.arrived)
	p.arrived = make(chan struct{})
}

func (p *Packet) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	close(p.arrived)
}

// Frames takes all frames that were collected, in their order.
func (p *Packet) Frames() []Frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	frames := p.frames
	p.frames = nil
	return frames
}

// Next waits for the next frame of which match is true, and takes it together
// with those before it; nil matches any. It ends with ctx, and with os.ErrClosed
// after Close.
func (p *Packet) Next(ctx context.Context, match func(frame []byte) bool) (Frame, error) {
	for {
		p.mu.Lock()
		for i, f := range p.frames {
			if match == nil || match(f.Data) {
				p.frames = p.frames[i+1:]
				p.mu.Unlock()
				return f, nil
			}
		}
		p.frames = nil
		arrived, err := p.arrived, p.err
		p.mu.Unlock()
		if err != nil {
			return Frame{}, fmt.Errorf("waiting for a frame on %s: %w", p.dev, err)
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return Frame{}, fmt.Errorf("waiting for a frame on %s: %w", p.dev, ctx.Err())
		}
	}
}

// Collect waits until there are n frames, and takes all that there are. When ctx
// ends before, it gives those which came and an error.
func (p *Packet) Collect(ctx context.Context, n int) ([]Frame, error) {
	for {
		p.mu.Lock()
		have, arrived, err := len(p.frames), p.arrived, p.err
		p.mu.Unlock()
		if have >= n {
			return p.Frames(), nil
		}
		if err == nil {
			select {
			case <-arrived:
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		frames := p.Frames()
		return frames, fmt.Errorf("collecting %d frames on %s, %d came: %w", n, p.dev, len(frames), err)
	}
}

// Dropped gives the number of frames that came but were not collected, as there
// was no room for them. Each frame is told once.
func (p *Packet) Dropped() (uint64, error) {
	var (
		stats *unix.TpacketStats
		err   error
	)
	ctlErr := p.raw.Control(func(fd uintptr) {
		stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if err = errors.Join(ctlErr, err); err != nil {
		return 0, fmt.Errorf("reading the drops of the packet socket on %s: %w", p.dev, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	surplus := p.surplus
	p.surplus = 0
	return uint64(stats.Drops) + surplus, nil
}

// Close ends the collecting. What was collected can still be taken.
func (p *Packet) Close() error {
	err := p.file.Close()
	<-p.ended
	return err
}
