package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// echoWithin bounds the wait for each answer to a ping, with room for address
// resolution on a busy machine.
const echoWithin = 2 * time.Second

// Ping sends count echo requests, each after the answer to the one before, from
// a node to an IPv4 or IPv6 address. It fails at the first that has no answer
// within 2 s or before ctx ends; the error is then os.ErrDeadlineExceeded or
// ctx's.
func Ping(ctx context.Context, from *Node, to netip.Addr, count int) error {
	network, local, protocol := "ip4:icmp", "0.0.0.0", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, local, protocol = "ip6:ipv6-icmp", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var conn *icmp.PacketConn
	err := from.Do(func() (err error) {
		conn, err = icmp.ListenPacket(network, local)
		return err
	})
	if err != nil {
		return fmt.Errorf("pinging %v from %s: %w", to, from.name, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()

	id := rand.N(1 << 16)
	answer := make([]byte, 1<<16)
	for seq := range count {
		echo := icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: seq & 0xffff, Data: []byte("tapswitch")}}
		b, err := echo.Marshal(nil) // the kernel fills in ICMPv6's checksum
		if err != nil {
			return fmt.Errorf("pinging %v from %s: %w", to, from.name, err)
		}
		conn.SetReadDeadline(time.Now().Add(echoWithin))
		err = ctx.Err() // after the deadline was set: one of both sees the end of ctx
		if err == nil {
			_, err = conn.WriteTo(b, &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()})
		}
		for answered := false; err == nil && !answered; {
			var n int
			if n, _, err = conn.ReadFrom(answer); err != nil {
				break
			}
			m, parseErr := icmp.ParseMessage(protocol, answer[:n])
			if parseErr != nil || m.Type != reply {
				continue
			}
			e, ok := m.Body.(*icmp.Echo)
			answered = ok && e.ID == id && e.Seq == seq&0xffff
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("pinging %v from %s: echo %d of %d: %w", to, from.name, seq+1, count, err)
		}
	}
	return nil
}
