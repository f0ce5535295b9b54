package lab

import (
	"testing"
	"time"
)

func TestStreamsAreExact(t *testing.T) {
	l := testLab(t, Options{Guests: 2})
	for _, c := range []struct {
		name     string
		from, to *Node
		opts     StreamOptions
	}{
		{"into a guest", l.Wire, l.Guests[0].Node, StreamOptions{Rate: 10000}},
		{"out of a guest", l.Guests[0].Node, l.Wire, StreamOptions{Rate: 10000, To: WireAddr6}},
		{"between guests", l.Guests[0].Node, l.Guests[1].Node, StreamOptions{Rate: 10000, Size: 1400}},
		{"few at a time", l.Wire, l.Guests[0].Node, StreamOptions{Rate: 5000, Window: 4, Cold: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := StartStream(c.from, c.to, c.opts)
			if err != nil {
				t.Fatal(err)
			}
			const n = 5000
			if err := s.WaitReceived(testContext(t), n); err != nil {
				t.Error(err)
			}
			r := s.Stop()
			if r.Sent < n || r.Received != r.Sent || r.Lost+r.Duplicated+r.Reordered+r.Damaged+r.Refused != 0 {
				t.Errorf("report is %+v, want at least %d and all received once, in order", r, n)
			}
			if most := uint64(r.Elapsed.Seconds()*float64(c.opts.Rate)) + 1; r.Sent > most {
				t.Errorf("sent %d in %v, want at most %d", r.Sent, r.Elapsed, most)
			}
			if again := s.Stop(); again != r {
				t.Errorf("stopping again gives %+v, want %+v", again, r)
			}
		})
	}
}

func TestStreamsCrossEachOther(t *testing.T) {
	l := testLab(t, Options{Guests: 2})
	var streams []*Stream
	for _, g := range l.Guests {
		for _, way := range [][2]*Node{{l.Wire, g.Node}, {g.Node, l.Wire}} {
			s, err := StartStream(way[0], way[1], StreamOptions{Rate: 2000})
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
	}
	for _, s := range streams {
		if err := s.WaitReceived(testContext(t), 1000); err != nil {
			t.Error(err)
		}
	}
	for _, s := range streams {
		if r := s.Stop(); r.Sent < 1000 || r.Received != r.Sent || r.Duplicated+r.Reordered+r.Damaged+r.Refused != 0 {
			t.Errorf("report is %+v, want all received once, in order", r)
		}
	}
}

// testTapPair gives two nodes whose taps have addresses. Frames from the second
// to the first are relayed, the test does it the other way.
func testTapPair(t *testing.T) (a, b *Node, taps [2]*Tap) {
	t.Helper()
	a, b = testNode(t, "a"), testNode(t, "b")
	for i, n := range []*Node{a, b} {
		tap, err := OpenTap(n, "eth0", TapOptions{VnetHdr: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tap.Close() })
		taps[i] = tap
		addr, _ := GuestAddrs(i)
		if err := n.AddAddr("eth0", onLink(addr)); err != nil {
			t.Fatal(err)
		}
		if err := n.SetUp("eth0"); err != nil {
			t.Fatal(err)
		}
	}
	var back way
	go back.carry(taps[0], taps[1])
	return a, b, taps
}

// TestStreamSparesQueues stops the path for longer than its queue can take.
func TestStreamSparesQueues(t *testing.T) {
	a, b, taps := testTapPair(t)
	link, err := a.Link("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Netlink().LinkSetTxQLen(link, 100); err != nil {
		t.Fatal(err)
	}
	go func() {
		frame := make([]byte, 2048)
		for i := 0; ; i++ {
			n, err := taps[0].Read(frame)
			if err != nil {
				return
			}
			if i%500 == 499 {
				time.Sleep(100 * time.Millisecond) // the CPU is busy elsewhere
			}
			taps[1].Write(frame[:n])
		}
	}()
	s, err := StartStream(a, b, StreamOptions{Rate: 5000, Window: 64})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitReceived(testContext(t), 2000); err != nil {
		t.Fatal(err)
	}
	if r := s.Stop(); r.Lost != 0 || r.Refused != 0 {
		t.Errorf("report is %+v, want nothing lost", r)
	}
}

// TestStreamSeesFaults relays a stream by hand, and breaks it on the way.
func TestStreamSeesFaults(t *testing.T) {
	a, b, taps := testTapPair(t)
	const lose, double, late = 7, 3, 5 // of those numbers modulo ten, in the order 5, 6 → 6, 5
	go func() {
		frame := make([]byte, 2048)
		var held []byte
		for {
			n, err := taps[0].Read(frame)
			if err != nil {
				return
			}
			digit := -1
			// Ethernet, IPv4 and UDP headers, the stream's number, the datagram's.
			if payload := VnetHdrLen + 14 + 20 + 8; n == payload+64 && frame[payload+8] == 0 {
				number := int(frame[payload+14])<<8 | int(frame[payload+15])
				digit = number % 10
			}
			switch digit {
			case lose:
				continue
			case late:
				held = append(held[:0], frame[:n]...)
				continue
			case double:
				taps[1].Write(frame[:n])
			}
			taps[1].Write(frame[:n])
			if held != nil && digit == late+1 {
				taps[1].Write(held)
			}
		}
	}()
	s, err := StartStream(a, b, StreamOptions{Rate: 1000, Grace: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitReceived(testContext(t), 500); err != nil {
		t.Fatal(err)
	}
	r := s.Stop()
	tens := r.Sent / 10
	for what, got := range map[string]uint64{"lost": r.Lost, "duplicated": r.Duplicated, "reordered": r.Reordered} {
		// The last ten may be incomplete, and the last one held for ever.
		if got < tens || got > tens+2 {
			t.Errorf("%s is %d of %d sent, want about %d", what, got, r.Sent, tens)
		}
	}
	if r.Received+r.Lost != r.Sent || r.Damaged != 0 {
		t.Errorf("report %+v doesn't add up", r)
	}
}

func TestStreamOverBrokenPath(t *testing.T) {
	l := testLab(t, Options{Guests: 1})
	g := l.Guests[0]
	s, err := StartStream(l.Wire, g.Node, StreamOptions{Rate: 2000, Window: 64, Grace: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitReceived(testContext(t), 100); err != nil {
		t.Fatal(err)
	}
	port, err := l.Host.Link(g.Port)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Host.Netlink().LinkSetDown(port); err != nil {
		t.Fatal(err)
	}
	// The window fills, then it is ignored: what is sent is lost, and is seen to be.
	before := s.Sent()
	for end := time.Now().Add(5 * time.Second); s.Sent() < before+500 && time.Now().Before(end); {
		time.Sleep(tick) // sending into nothing makes no event
	}
	if err := l.Host.SetUp(g.Port); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitReceived(testContext(t), 100); err != nil {
		t.Errorf("after the break: %v", err)
	}
	r := s.Stop()
	if r.Lost < 400 || r.Received < 200 || r.Received+r.Lost != r.Sent {
		t.Errorf("report is %+v, want more than 400 lost and 200 received", r)
	}
}

func TestStreamNeedsAWay(t *testing.T) {
	a, b := testNode(t, "a"), testNode(t, "b")
	if s, err := StartStream(a, b, StreamOptions{}); err == nil {
		s.Stop()
		t.Error("a stream to a node without address started")
	}
	if s, err := StartStream(a, a, StreamOptions{Size: 3}); err == nil {
		s.Stop()
		t.Error("a stream of 3-byte datagrams started")
	}
}
