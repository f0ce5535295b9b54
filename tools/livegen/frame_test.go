package livegen

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func TestUDPFrame(t *testing.T) {
	dest, source := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	for _, tt := range []struct{ size, want int }{{0, 60}, {60, 60}, {61, 61}, {1514, 1514}} {
		f := UDPFrame(dest, source, tt.size)
		if len(f) != tt.want {
			t.Errorf("size %d: got %d bytes, want %d", tt.size, len(f), tt.want)
		}
		p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
		if e := p.ErrorLayer(); e != nil {
			t.Fatalf("size %d: %v", tt.size, e.Error())
		}
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		if [6]byte(eth.DstMAC) != dest || [6]byte(eth.SrcMAC) != source {
			t.Errorf("size %d: from %v to %v", tt.size, eth.SrcMAC, eth.DstMAC)
		}
		ip := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		if int(ip.Length) != tt.want-ethernetHeader {
			t.Errorf("size %d: IP length %d", tt.size, ip.Length)
		}
		if got := sum(ip.Contents); got != 0xffff {
			t.Errorf("size %d: the IP header sums up to %#x, want 0xffff", tt.size, got)
		}
		bench := netip.MustParsePrefix("198.18.0.0/15")
		for _, ip := range [][]byte{ip.SrcIP, ip.DstIP} {
			if a, _ := netip.AddrFromSlice(ip); !bench.Contains(a) {
				t.Errorf("size %d: address %v is outside %v", tt.size, a, bench)
			}
		}
		udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if udp.Checksum != 0 || int(udp.Length) != tt.want-ethernetHeader-ipHeader {
			t.Errorf("size %d: UDP checksum %#x, length %d", tt.size, udp.Checksum, udp.Length)
		}
	}
}

func TestTCPFrame(t *testing.T) {
	for _, tt := range []struct{ size, want int }{{0, 60}, {1514, 1514}} {
		f := TCPFrame([6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}, tt.size)
		p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
		tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok || len(f) != tt.want {
			t.Fatalf("size %d: %d bytes, %v", tt.size, len(f), p)
		}
		if !tcp.ACK || tcp.SYN || tcp.FIN || tcp.RST || len(tcp.Contents) != tcpHeader {
			t.Errorf("size %d: %+v, want an acknowledgement", tt.size, tcp)
		}
	}
}

func TestSum(t *testing.T) {
	// The example of RFC 1071, section 3.
	b := binary.BigEndian.AppendUint64(nil, 0x0001f203f4f5f6f7)
	if got := sum(b); got != 0xddf2 {
		t.Errorf("got %#x, want 0xddf2", got)
	}
}
