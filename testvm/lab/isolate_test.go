package lab

import (
	"io"
	"net"
	"os"
	"os/exec"
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

// A program that an isolated one starts, as a fuzz test starts its workers, has
// namespaces of its own, and the files that it was given.
func TestIsolatedWithin(t *testing.T) {
	const inner = "TAPSWITCH_LAB_TEST_WITHIN"
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(inner) != "" {
		if _, err := os.NewFile(3, "given").WriteString(namespace); err != nil {
			t.Fatal(err)
		}
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inner+"=1")
	cmd.ExtraFiles = []*os.File{w}
	out, err := cmd.CombinedOutput()
	w.Close()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, err := io.ReadAll(r); err != nil || len(got) == 0 || string(got) == namespace {
		t.Errorf("within, the network namespace is %q (%v), here %q", got, err, namespace)
	}
}
