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
	file *os.File
	// only says whether to take frames of a device, by ifindex; nil takes all.
	only func(ifindex int) bool
	box  *inbox
	done chan struct{}
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

// receiveFrom starts to put frames into box.
func receiveFrom(n *lab.Node, ifindex int, ethertype uint16, promiscuous bool, only func(int) bool, box *inbox) (*socket, error) {
	f, err := openSocket(n, ifindex, ethertype, promiscuous)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket in %s: %w", n.Name(), err)
	}
	s := &socket{file: f, only: only, box: box, done: make(chan struct{})}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("opening a packet socket in %s: %w", n.Name(), err)
	}
	go s.receive(raw.Read)
	return s, nil
}

func (s *socket) receive(whenReadable func(func(fd uintptr) bool) error) {
	defer close(s.done)
	buffer, control := make([]byte, vnetLen+lab.MaxFrameLen), make([]byte, 128)
	for {
		var (
			n, controlLen int
			from          unix.Sockaddr
			err           error
		)
		if e := whenReadable(func(fd uintptr) bool {
			n, controlLen, _, from, err = unix.Recvmsg(int(fd), buffer, control, 0)
			return err != unix.EAGAIN && err != unix.EINTR
		}); e != nil {
			s.box.end(e)
			return
		}
		if errors.Is(err, unix.ENETDOWN) { // told once when a device goes down
			continue
		}
		if err != nil {
			s.box.end(err)
			return
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok || ll.Pkttype == unix.PACKET_OUTGOING || n < vnetLen || s.only != nil && !s.only(ll.Ifindex) {
			continue
		}
		s.box.add(buffer[:vnetLen], withTag(buffer[vnetLen:n], control[:controlLen]))
	}
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
	raw, err := s.file.SyscallConn()
	if err == nil {
		var stats *unix.TpacketStats
		e := raw.Control(func(fd uintptr) {
			stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		})
		if err = errors.Join(err, e); err == nil {
			return stats.Drops, nil
		}
	}
	return 0, fmt.Errorf("reading the drops of a packet socket: %w", err)
}

func (s *socket) close() error {
	err := s.file.Close()
	<-s.done
	return err
}
