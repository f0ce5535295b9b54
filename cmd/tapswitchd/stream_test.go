package main

import (
	"testing"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// stream starts a stream of numbered datagrams, which goes on until whole.
func stream(t *testing.T, from, to *lab.Node, o lab.StreamOptions) *lab.Stream {
	t.Helper()
	s, err := lab.StartStream(from, to, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	return s
}

// whole ends a stream and checks that all of it came, once.
func whole(t *testing.T, name string, s *lab.Stream) lab.StreamReport {
	t.Helper()
	r := s.Stop()
	if r.Lost+r.Duplicated+r.Damaged+r.Refused > 0 {
		t.Errorf("%s: of %d datagrams %d were lost, %d doubled, %d damaged, %d refused",
			name, r.Sent, r.Lost, r.Duplicated, r.Damaged, r.Refused)
	}
	t.Logf("%s: %d datagrams in %v, %d of them out of order", name, r.Sent, r.Elapsed.Round(1e6), r.Reordered)
	return r
}
