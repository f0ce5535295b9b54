package lab

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
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
	if entries, err := os.ReadDir("/run"); err != nil || len(entries) != 0 {
		t.Errorf("/run has %v (%v), want nothing", entries, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/bpf", &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		t.Errorf("/sys/fs/bpf is of type %#x (%v), want a BPF file system", fs.Type, err)
	}
}
