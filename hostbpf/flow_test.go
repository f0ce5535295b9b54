package hostbpf

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A segment is a TCP or UDP frame from outside to the guest.
type segment struct {
	v6, udp   bool
	port      uint16 // of the source, which tells flows apart
	payload   int
	options   bool // of IPv4
	fragment  bool
	extension bool // of IPv6
}

func (s segment) frame(t *testing.T) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: macOutside[:], DstMAC: macGuest[:], EthernetType: layers.EthernetTypeIPv4}
	ip4 := &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP,
		SrcIP: net.IP{198, 18, 0, 1}, DstIP: net.IP{198, 18, 0, 11},
	}
	ip6 := &layers.IPv6{
		Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP,
		SrcIP: net.ParseIP("2001:db8::1"), DstIP: net.ParseIP("2001:db8::11"),
	}
	if s.options {
		ip4.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 1}}
	}
	if s.fragment {
		ip4.FragOffset = 100
	}
	list := []gopacket.SerializableLayer{eth, ip4}
	if s.v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
		list[1] = ip6
	}
	if s.extension {
		ip6.NextHeader = layers.IPProtocolIPv6HopByHop
	}
	if s.udp {
		ip4.Protocol, ip6.NextHeader = layers.IPProtocolUDP, layers.IPProtocolUDP
		list = append(list, &layers.UDP{SrcPort: layers.UDPPort(s.port), DstPort: 80})
	} else {
		list = append(list, &layers.TCP{SrcPort: layers.TCPPort(s.port), DstPort: 80, ACK: true, Window: 1000})
	}
	list = append(list, gopacket.Payload(make([]byte, s.payload)))
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, list...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestBulkFlows sends frames one after the other and looks at the way of each.
func TestBulkFlows(t *testing.T) {
	const long, ack = 1400, 0
	type step struct {
		segment
		want vswitch.Verdict
	}
	bulk, fast := vswitch.PassBulk, vswitch.Redirected
	tests := []struct {
		name  string
		steps []step
	}{
		{"requests and answers stay", []step{
			{segment{payload: 64}, fast}, {segment{payload: ack}, fast}, {segment{payload: 500}, fast}}},
		{"a long segment takes its flow along", []step{
			{segment{payload: 64}, fast}, {segment{payload: long}, bulk}, {segment{payload: long}, bulk},
			{segment{payload: 10}, bulk}, {segment{payload: ack}, bulk}}},
		{"and no other", []step{
			{segment{payload: long}, bulk}, {segment{port: 2, payload: 64}, fast}, {segment{payload: 64}, bulk},
			{segment{v6: true, payload: 64}, fast}}},
		{"IPv6", []step{
			{segment{v6: true, payload: 64}, fast}, {segment{v6: true, payload: long}, bulk},
			{segment{v6: true, payload: ack}, bulk}, {segment{v6: true, port: 2, payload: ack}, fast}}},
		{"UDP stays", []step{
			{segment{udp: true, payload: long}, fast}, {segment{udp: true, v6: true, payload: long}, fast},
			{segment{udp: true, payload: 10}, fast}}},
		{"what is not plainly TCP stays", []step{
			{segment{options: true, payload: long}, fast}, {segment{fragment: true, payload: long}, fast},
			{segment{v6: true, extension: true, payload: long}, fast}}},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newVerdictBed(t)
			for n, s := range tt.steps {
				s.port += uint16(1000 * (i + 1))
				where := counter{b.uplink, vswitch.HookXDP}
				before := b.counted(t)[where]
				action := b.run(t, hooksProgUplinkRxXdp, b.uplink, s.frame(t), 0)
				if got := b.counted(t)[where][s.want] - before[s.want]; got != 1 {
					t.Errorf("step %d: %d more %s (action %d), want 1", n, got, s.want, action)
				}
				// The hook after GRO takes all of them.
				if action := b.run(t, hooksProgUplinkRx, b.uplink, s.frame(t), 0); action != redirectAction[vswitch.HookTC] {
					t.Errorf("step %d: the tc hook gives action %d, want a redirect", n, action)
				}
			}
		})
	}
}

// TestBulkToUnmerged has one guest that takes no merged segments: its bulk flows stay
// on XDP, and those of others don't.
func TestBulkToUnmerged(t *testing.T) {
	b := newVerdictBed(t)
	unmerged := func(ifindex int) {
		t.Helper()
		c := b.Ports()[ifindex]
		c.Unmerged = true
		if err := b.SetPort(c); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, b.ports.config(b.Datapath.held[ifindex].slot), cmpopts.IgnoreFields(c, "Attach", "XDP")); diff != "" {
			t.Errorf("port (-set +held):\n%s", diff)
		}
	}
	long := segment{payload: 1400}.frame(t)
	toOther := slices.Clone(long)
	copy(toOther, macOther[:])
	ways := func(guest, other vswitch.Verdict) {
		t.Helper()
		for _, to := range []struct {
			frame []byte
			want  vswitch.Verdict
		}{{long, guest}, {toOther, other}} {
			where := counter{b.uplink, vswitch.HookXDP}
			before := b.counted(t)[where]
			b.run(t, hooksProgUplinkRxXdp, b.uplink, to.frame, 0)
			if got := b.counted(t)[where][to.want] - before[to.want]; got != 1 {
				t.Errorf("to %v: %d more %s, want 1", to.frame[:6], got, to.want)
			}
		}
	}
	ways(vswitch.PassBulk, vswitch.PassBulk)
	unmerged(b.guest) // of which the uplink does not know yet
	ways(vswitch.PassBulk, vswitch.PassBulk)
	unmerged(b.uplink)
	ways(vswitch.Redirected, vswitch.PassBulk)
}

// TestBulkFlowsComeBack once they have been idle.
func TestBulkFlowsComeBack(t *testing.T) {
	b := newVerdictBed(t)
	long, short := segment{payload: 1400}.frame(t), segment{payload: 64}.frame(t)
	if got := b.run(t, hooksProgUplinkRxXdp, b.uplink, long, 0); got != passAction[vswitch.HookXDP] {
		t.Fatalf("action is %d, want a pass", got)
	}
	idle := time.Duration(b.lease.control.BulkIdle) * time.Second / time.Duration(b.lease.hz)
	deadline := time.Now().Add(idle + 10*time.Second)
	for began := time.Now(); b.run(t, hooksProgUplinkRxXdp, b.uplink, short, 0) != redirectAction[vswitch.HookXDP]; {
		if time.Now().After(deadline) {
			t.Fatalf("the flow is still bulk after %v, want %v", time.Since(began), idle)
		}
		time.Sleep(time.Millisecond) // jiffies make no event
	}
	if err := b.Renew(time.Minute); err != nil { // the daemon's clock stands still between renewals
		t.Fatal(err)
	}
	if n := b.BulkFlows(); n != 0 {
		t.Errorf("%d flows are bulk, want none", n)
	}
	b.run(t, hooksProgUplinkRxXdp, b.uplink, long, 0)
	if n := b.BulkFlows(); n != 1 {
		t.Errorf("%d flows are bulk, want 1", n)
	}
}
