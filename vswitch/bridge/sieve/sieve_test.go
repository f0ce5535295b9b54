package sieve

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// message makes an event of an entry with the attributes in the kernel's order.
func message(typ uint16, family byte, port int, flags byte, state uint16, key vswitch.FDBKey) []byte {
	native := binary.NativeEndian
	b := native.AppendUint16(make([]byte, 4), typ)
	b = append(b, make([]byte, 10)...)
	b = append(b, family, 0, 0, 0)
	b = native.AppendUint32(b, uint32(port))
	b = append(native.AppendUint16(b, state), flags, 0)
	attribute := func(typ uint16, v []byte) {
		b = native.AppendUint16(native.AppendUint16(b, uint16(4+len(v))), typ)
		b = append(append(b, v...), make([]byte, -len(v)&3)...)
	}
	attribute(unix.NDA_LLADDR, key.MAC[:])
	attribute(unix.NDA_MASTER, native.AppendUint32(nil, uint32(key.Bridge)))
	attribute(unix.NDA_CACHEINFO, make([]byte, 16))
	if key.VLAN != 0 {
		attribute(unix.NDA_VLAN, native.AppendUint16(nil, uint16(key.VLAN)))
	}
	native.PutUint32(b, uint32(len(b)))
	return b
}

func newSieve(t *testing.T) *Sieve {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func passes(t *testing.T, s *Sieve, message []byte) bool {
	t.Helper()
	pass, err := s.Passes(message)
	if err != nil {
		t.Fatal(err)
	}
	return pass
}

func key(n int, vlan vswitch.VLAN) vswitch.FDBKey {
	return vswitch.FDBKey{Bridge: 7, VLAN: vlan, MAC: vswitch.MAC{2, 0, 0, byte(n >> 16), byte(n >> 8), byte(n)}}
}

func TestWhatPasses(t *testing.T) {
	const (
		shut, open = 3, 4
		added      = unix.RTM_NEWNEIGH
		gone       = unix.RTM_DELNEIGH
		learned    = unix.NUD_REACHABLE
	)
	s := newSieve(t)
	s.Shut(shut)
	s.Hold(key(1, 0))
	s.Hold(key(1, 9))
	for _, tc := range []struct {
		what    string
		message []byte
		pass    bool
	}{
		{"a link", message(unix.RTM_NEWLINK, 0, shut, 0, 0, key(0, 0)), true},
		{"the host's ARP table", message(added, unix.AF_INET, shut, 0, learned, key(0, 0)), false},
		{"a tunnel's table", message(added, unix.AF_BRIDGE, shut, unix.NTF_SELF, learned, key(0, 0)), false},
		{"an entry that is held", message(added, unix.AF_BRIDGE, shut, 0, learned, key(1, 0)), true},
		{"the same in a VLAN", message(added, unix.AF_BRIDGE, shut, 0, learned, key(1, 9)), true},
		{"its end", message(gone, unix.AF_BRIDGE, shut, 0, learned, key(1, 9)), true},
		{"the same in a VLAN where it is not", message(added, unix.AF_BRIDGE, shut, 0, learned, key(1, 8)), false},
		{"a new entry of a port without room", message(added, unix.AF_BRIDGE, shut, 0, learned, key(2, 0)), false},
		{"a static one", message(added, unix.AF_BRIDGE, shut, 0, unix.NUD_NOARP, key(3, 0)), true},
		{"a controller's", message(added, unix.AF_BRIDGE, shut, unix.NTF_EXT_LEARNED, learned, key(4, 0)), true},
		{"a new one of another port", message(added, unix.AF_BRIDGE, open, 0, learned, key(5, 0)), true},
		{"that one when it moves", message(added, unix.AF_BRIDGE, shut, 0, learned, key(5, 0)), true},
		{"the end of one that is not held", message(gone, unix.AF_BRIDGE, open, 0, learned, key(6, 0)), false},
		{"no entry at all", message(added, unix.AF_BRIDGE, shut, 0, learned, key(2, 0))[:28], true},
		{"nothing", make([]byte, 4), true},
	} {
		if got := passes(t, s, tc.message); got != tc.pass {
			t.Errorf("%s: passes %v, want %v", tc.what, got, tc.pass)
		}
	}
	if n := s.Dropped(shut); n != 2 {
		t.Errorf("%d new entries were dropped, want 2", n)
	}
	for n, want := range map[int]bool{1: false, 2: true, 5: false, 6: true} {
		if got := s.Missed(key(n, 0)); got != want {
			t.Errorf("word of entry %d was missed: %v, want %v", n, got, want)
		}
	}
	if n := s.Open(shut); n != 2 {
		t.Errorf("%d new entries were dropped before the port was opened, want 2", n)
	}
	if !passes(t, s, message(added, unix.AF_BRIDGE, shut, 0, learned, key(2, 0))) {
		t.Error("a new entry of a port that has room again is dropped")
	}
}

// A table that is made anew has what was heard of meanwhile and what its owner has,
// and forgets the rest.
func TestRenew(t *testing.T) {
	const port = 3
	s := newSieve(t)
	learn := func(n int) bool {
		return passes(t, s, message(unix.RTM_NEWNEIGH, unix.AF_BRIDGE, port, 0, unix.NUD_REACHABLE, key(n, 0)))
	}
	for round := range 3 { // one table after the other
		first := round * 1_000_000
		n := first
		for ; !s.Worn(); n++ {
			if !learn(n) {
				t.Fatal("a port with room has entries dropped")
			}
		}
		if n-first < wornAt/2 {
			t.Fatalf("the table is worn after %d entries", n-first)
		}
		if err := s.Renew(); err != nil {
			t.Fatal(err)
		}
		learn(n)
		s.Hold(key(first, 0))
		s.Renewed()
		if s.Worn() || s.Renewing() {
			t.Error("the table is worn still")
		}
		s.Shut(port)
		if !learn(n) || !learn(first) {
			t.Error("what is held is dropped")
		}
		passed := 0
		for i := first + 1; i < n; i++ {
			if learn(i) {
				passed++
			}
		}
		if passed > 20 { // by their hash
			t.Errorf("%d of %d entries that are forgotten pass", passed, n-first)
		}
		s.Open(port)
	}
}
