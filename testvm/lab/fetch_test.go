package lab

import (
	"context"
	"testing"
	"time"
)

func TestFetch(t *testing.T) {
	for name, opts := range map[string]Options{
		"offloads":    {Guests: 2},
		"no offloads": {Guests: 2, Guest: GuestOptions{NoOffloads: true}},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLab(t, opts)
			g, h := l.Guests[0], l.Guests[1]
			const size = 8<<20 + 1
			for _, c := range []struct {
				name           string
				client, server *Node
				v6             bool
			}{
				{"into a guest", g.Node, l.Wire, false},
				{"out of a guest", l.Wire, g.Node, true},
				{"between guests", h.Node, g.Node, false},
			} {
				addr, err := c.server.Addr(c.v6)
				if err != nil {
					t.Fatal(err)
				}
				r, err := Fetch(testContext(t), c.client, c.server, addr, size)
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
					continue
				}
				if r.Bytes != size || r.MbPerSecond() <= 0 {
					t.Errorf("%s: report is %+v", c.name, r)
				}
				t.Logf("%s: %.0f Mb/s", c.name, r.MbPerSecond())
			}
			// Large frames go through the relay only where the guest takes them.
			frames, bytes := g.ToHost().Frames, g.ToHost().Bytes
			if large := bytes/frames > 1514; large == opts.Guest.NoOffloads {
				t.Errorf("the guest sent %d bytes in %d frames with NoOffloads=%v", bytes, frames, opts.Guest.NoOffloads)
			}
		})
	}
}

func TestNICGROMergesFramesForTheGuest(t *testing.T) {
	for _, gro := range []bool{false, true} {
		l := testLab(t, Options{Guests: 1, NICGRO: gro})
		g := l.Guests[0]
		if _, err := Fetch(testContext(t), g.Node, l.Wire, WireAddr4, 8<<20); err != nil {
			t.Fatal(err)
		}
		frames, bytes := g.ToGuest().Frames, g.ToGuest().Bytes
		if merged := bytes/frames > 1514; merged != gro {
			t.Errorf("with NICGRO=%v the guest got %d bytes in %d frames", gro, bytes, frames)
		}
	}
}

func TestFetchEndsWithItsContext(t *testing.T) {
	l := testLab(t, Options{Guests: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := Fetch(ctx, l.Guests[0].Node, l.Wire, WireAddr4, 1<<40); err == nil || ctx.Err() == nil {
		t.Errorf("fetching 1 TiB in 30 ms: %v", err)
	}
}
