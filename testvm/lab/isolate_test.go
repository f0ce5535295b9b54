package lab

import (
	"net"
	"os"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

func TestIsolated(t *testing.T) {
	if os.Getpid() != 1 {
		t.Errorf("pid is %d, want 1", os.Getpid())
	}
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(ifs) != 1 || ifs[0].Name != "lo" {
		t.Errorf("a new network namespace has devices %v, want lo alone", ifs)
	}
	for _, empty := range []string{"/sys/fs/bpf", "/run"} {
		entries, err := os.ReadDir(empty)
		if err != nil || len(entries) != 0 {
			t.Errorf("%s has %v (%v), want nothing", empty, entries, err)
		}
	}
}
