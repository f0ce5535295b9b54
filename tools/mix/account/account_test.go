package account

import (
	"context"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// Frames between the wire and a guest cost the host, and the two, and nobody else.
func TestAccount(t *testing.T) {
	var labs [2]*lab.Lab
	for i := range labs {
		l, err := lab.New(lab.Options{Guests: 1, NICGRO: true})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		labs[i] = l
	}
	busy, idle := labs[0], labs[1]
	a, err := Open([]int{busy.Host.NetNS(), idle.Host.NetNS()}, []int{busy.Wire.NetNS(), busy.Guests[0].NetNS()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	before, err := a.Read()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	if _, err := lab.Fetch(ctx, busy.Guests[0].Node, busy.Wire, lab.WireAddr4, 100e6); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	after, err := a.Read()
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]time.Duration{
		"host":  after.Hosts[0] - before.Hosts[0],
		"wire":  after.Stations[0] - before.Stations[0],
		"guest": after.Stations[1] - before.Stations[1],
	} {
		if d <= 0 || d > took {
			t.Errorf("the %s spent %v in %v", name, d, took)
		}
		t.Logf("%s: %v", name, d)
	}
	if d := after.Hosts[1] - before.Hosts[1]; d > took/100 {
		t.Errorf("an idle host spent %v in %v", d, took)
	}
	if d := after.Ends - before.Ends; d < took/10 || d > 3*took {
		t.Errorf("the ends spent %v in %v", d, took)
	}
	t.Logf("ends: %v of %v", after.Ends-before.Ends, took)
}
