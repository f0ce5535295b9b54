package oracle

import (
	"encoding/binary"
	"errors"
	"flag"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"testing"
)

// A bytesSource gives the random numbers of a run out of bytes, two for each, so that
// what changes a few of them changes a few decisions. Behind their end it goes on as
// they determine.
type bytesSource struct {
	bytes []byte
	rest  *rand.PCG
}

func newBytesSource(b []byte) *bytesSource {
	h := fnv.New64a()
	h.Write(b)
	return &bytesSource{b, rand.NewPCG(h.Sum64(), 0)}
}

func (s *bytesSource) Uint64() uint64 {
	if len(s.bytes) < 2 {
		return s.rest.Uint64()
	}
	v := binary.BigEndian.Uint16(s.bytes)
	s.bytes = s.bytes[2:]
	return uint64(v) * 0x0001_0001_0001_0001 // users take high bits or low ones
}

// fuzzFrames is how many frames are made out of one input.
const fuzzFrames = 200

// noVLANs says that this kernel's bridge has no VLAN filtering.
var noVLANs bool

// FuzzOracle compares the hosts by configurations, changes and frames that are made out
// of bytes, the first of which chooses the kind of hosts.
func FuzzOracle(f *testing.F) {
	for _, kind := range []byte{0, 1, 2, 8} {
		b := []byte{kind}
		for r := rand.NewPCG(uint64(kind), 0); len(b) < 2000; {
			b = binary.BigEndian.AppendUint64(b, r.Uint64())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		o := Options{
			Daemon: daemonPath, Log: io.Discard, Attended: true,
			Snooping: b[0]&1 != 0, Jumbo: b[0]&2 != 0, Malformed: b[0]&4 != 0, VLANs: b[0]&8 != 0 && !noVLANs,
		}
		_, c, err := Run(t.Context(), o, newBytesSource(b[1:]), fuzzFrames)
		if errors.Is(err, errors.ErrUnsupported) && o.VLANs {
			noVLANs = true
			t.Skipf("SKIPPED: %v", err)
		}
		// A fuzz test's workers look for smaller inputs themselves.
		worker := flag.Lookup("test.fuzzworker")
		if d := (*Difference)(nil); errors.As(err, &d) && worker.Value.String() == "false" {
			shrinkAndKeep(t, c, d)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}
