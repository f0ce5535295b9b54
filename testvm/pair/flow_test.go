package pair

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

const (
	rate = 5000 // frames per second
	// window is how many frames may be on their way: as many as a round of the guest's
	// NAPI, so that no ring on the way overflows however slow the emulation is.
	window = 64

	headers = 14 + 20 + 8 // bytes before the payload
	magic   = "pair"
)

// A flow is numbered frames from the station of one uplink.
type flow struct {
	from     string // the uplink
	src, dst net.HardwareAddr
	port     uint16 // of UDP, as destination
	frames   int
}

// An arrival tells where a flow's frames are to arrive, and with which addresses.
type arrival struct {
	at       string // the uplink
	src, dst net.HardwareAddr
}

func (f flow) frame(seq int) ([]byte, error) {
	b := gopacket.NewSerializeBuffer()
	ip := &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
		SrcIP: netip.MustParseAddr("198.18.1.1").AsSlice(), DstIP: netip.MustParseAddr("198.18.1.2").AsSlice(),
	}
	// Different flows to the NIC, so that all its queues get some.
	udp := &layers.UDP{SrcPort: layers.UDPPort(1024 + seq%61), DstPort: layers.UDPPort(f.port)}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, err
	}
	payload := binary.BigEndian.AppendUint32([]byte(magic), uint32(seq))
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: f.src, DstMAC: f.dst, EthernetType: layers.EthernetTypeIPv4}, ip, udp,
		gopacket.Payload(append(payload, make([]byte, 22)...)))
	return b.Bytes(), err
}

// ours says whether a frame is a flow's.
func ours(f []byte) bool {
	return len(f) >= headers+len(magic)+4 && string(f[headers:headers+len(magic)]) == magic
}

// send sends the frames. Arrived waits until so many of them have arrived.
func (r *rig) send(f flow, arrived func(n int) error) error {
	began, done := time.Now(), 0
	for seq := range f.frames {
		b, err := f.frame(seq)
		if err != nil {
			return err
		}
		if seq-done >= window {
			done = seq - window/2
			if err := arrived(done); err != nil {
				return fmt.Errorf("after %d frames: %w", seq, err)
			}
		}
		time.Sleep(time.Until(began.Add(time.Duration(seq) * time.Second / rate)))
		if err := r.out[f.from].Send(b); err != nil {
			return err
		}
	}
	return arrived(f.frames)
}

// deliver sends the frames, each of which must arrive once, and as it should be.
func (r *rig) deliver(ctx context.Context, f flow, a arrival) error {
	var got []lab.Frame
	err := r.send(f, func(n int) error {
		more, err := r.out[a.at].Collect(ctx, max(0, n-len(got)))
		got = append(got, more...)
		return err
	})
	if err != nil {
		return err
	}
	came := make([]bool, f.frames)
	want := f
	want.src, want.dst = a.src, a.dst
	for _, frame := range got {
		seq := int(binary.BigEndian.Uint32(frame.Data[headers+len(magic):]))
		b, err := want.frame(seq)
		switch {
		case err != nil:
			return err
		case !bytes.Equal(frame.Data, b):
			return fmt.Errorf("frame %d came as\n%x, want\n%x", seq, frame.Data, b)
		case seq >= f.frames || came[seq]:
			return fmt.Errorf("frame %d came twice, or was never sent", seq)
		}
		came[seq] = true
	}
	if len(got) != f.frames {
		return fmt.Errorf("%d frames arrived, want %d", len(got), f.frames)
	}
	return nil
}

// swallow sends frames that end in the guest: they count as arrived when QEMU has taken
// them out of the tap.
func (r *rig) swallow(ctx context.Context, f flow, tap string) error {
	taken := func() (uint64, error) {
		l, err := r.Host.Link(tap)
		if err != nil {
			return 0, err
		}
		return l.Attrs().Statistics.TxPackets, nil
	}
	before, err := taken()
	if err != nil {
		return err
	}
	return r.send(f, func(n int) error {
		for {
			now, err := taken()
			if err != nil || now-before >= uint64(n) {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%d of %d frames were taken from %s: %w", now-before, n, tap, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	})
}
