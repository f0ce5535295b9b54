package oracle

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestAddressOfZeros sends frames from and to the address that is all zeros while
// the datapath's table is full of entries that are being deleted: none of them may
// be taken for that address's.
func TestAddressOfZeros(t *testing.T) {
	const addresses = 40000 // so many that few buckets of the table are empty
	ctx := t.Context()
	p, err := newPair(ctx, Options{Daemon: daemonPath, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	gen := newGenerator(rand.NewPCG(1, 0), Options{}, p.net)
	const many, other = 1, 2 // ports
	for i := range addresses {
		m := mac{0x02, 0x10}
		binary.BigEndian.PutUint32(m[2:], uint32(i))
		body := gen.payload(46)
		if err := p.send(ctx, &frame{port: many, data: ethernet(markMAC(many), m, 0x88b6, body)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.settleEntries(); err != nil {
		t.Fatal(err)
	}
	p.journal = nil
	if _, _, err := p.flush(ctx, nil); err != nil {
		t.Fatal(err)
	}
	for left := addresses; left > 0; {
		if left = len(p.fast.view.entries()); left < addresses/100 {
			left = 0
		}
		for _, f := range []*frame{
			{kind: "from zeros", port: many, data: ethernet(markMAC(other), mac{}, 0x88b6, gen.payload(46))},
			{kind: "to zeros", port: other, data: ethernet(mac{}, markMAC(other), 0x88b6, gen.payload(46))},
		} {
			if err := p.send(ctx, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.compare(); err != nil {
		t.Fatal(err)
	}
}
