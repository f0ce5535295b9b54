package oracle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// socketBuffer has room for every frame of a batch, in bytes.
const socketBuffer = 256 << 20

// A socket receives the frames of a device, or of all devices of a node, with
// their virtio-net headers: lab.Packet is promiscuous, which holds the fast path
// of a bridge back, and doesn't tell offloads.
type socket struct {
	*feed
	file            *os.File
	not             int // the ifindex of a device whose frames are left out
	buffer, control []byte
}

// openSocket receives frames of a type; device 0 means all.
func openSocket(n *lab.Node, ifindex int, ethertype uint16, promiscuous bool) (*os.File, error) {
	fd := -1
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	options := []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer},
		{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1}, // where the kernel puts the outer tag
		{unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1},
	}
	for _, o := range options {
		if err = unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			break
		}
	}
	if err == nil && promiscuous {
		err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(ifindex), Type: unix.PACKET_MR_PROMISC})
	}
	if err == nil {
		wire := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, ethertype))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifindex, Protocol: wire})
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "packet"), nil
}

// listen opens a socket for frames of a type from a device, of which 0 means all.
func listen(n *lab.Node, ifindex int, ethertype uint16, promiscuous bool, box *inbox) (*socket, error) {
	f, err := openSocket(n, ifindex, ethertype, promiscuous)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket in %s: %w", n.Name(), err)
	}
	s := &socket{
		feed: &feed{box: box}, file: f, buffer: make([]byte, vnetLen+lab.MaxFrameLen), control: make([]byte, 128),
	}
	s.receive = s.receiveOne
	if s.raw, err = f.SyscallConn(); err != nil {
		f.Close()
		return nil, fmt.Errorf("opening a packet socket in %s: %w", n.Name(), err)
	}
	return s, nil
}

// receiveOne puts one frame into the inbox; EAGAIN means that there is none.
func (s *socket) receiveOne(fd int) error {
	n, controlLen, _, from, err := unix.Recvmsg(fd, s.buffer, s.control, 0)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN): // told once when a device goes down
		return nil
	case err != nil:
		return os.NewSyscallError("recvmsg", err)
	}
	ll, ok := from.(*unix.SockaddrLinklayer)
	if ok && ll.Pkttype != unix.PACKET_OUTGOING && n >= vnetLen && ll.Ifindex != s.not {
		s.box.add(s.buffer[:vnetLen], withTag(s.buffer[vnetLen:n], s.control[:controlLen]))
	}
	return nil
}

// withTag gives the frame with the VLAN tag that the kernel has taken out of it.
func withTag(b, control []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return b
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < int(unsafe.Sizeof(auxdata{})) {
			continue
		}
		aux := (*auxdata)(unsafe.Pointer(&m.Data[0]))
		if aux.status&unix.TP_STATUS_VLAN_VALID == 0 || len(b) < 12 {
			continue
		}
		tagged := append(make([]byte, 0, len(b)+4), b[:12]...)
		tagged = binary.BigEndian.AppendUint16(tagged, aux.vlanTPID)
		tagged = binary.BigEndian.AppendUint16(tagged, aux.vlanTCI)
		return append(tagged, b[12:]...)
	}
	return b
}

// auxdata is struct tpacket_auxdata.
type auxdata struct {
	status, _, _      uint32
	_, _              uint16
	vlanTCI, vlanTPID uint16
}

// dropped gives the number of frames that there was no room for.
func (s *socket) dropped() (n uint32, err error) {
	var stats *unix.TpacketStats
	e := s.raw.Control(func(fd uintptr) {
		stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if err = errors.Join(err, e); err != nil {
		return 0, fmt.Errorf("reading the drops of a packet socket: %w", err)
	}
	return stats.Drops, nil
}

func (s *socket) close() error { return s.file.Close() }
