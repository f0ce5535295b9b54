package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tapswitch/tapswitch/testvm/initramfs"
	"github.com/tapswitch/tapswitch/testvm/kernel"
	"github.com/tapswitch/tapswitch/testvm/qemu"
	"github.com/tapswitch/tapswitch/testvm/qemu/guest"
)

// insideEnv has this test's program say what it sees, in the guest.
const insideEnv = "TESTVM_TEST_INSIDE"

func TestMain(m *testing.M) {
	guest.Main() // 'testvm run' makes this program the guest's first process
	if os.Getenv(insideEnv) != "" {
		release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
		dir, _ := os.Getwd()
		file, _ := os.ReadFile("file")
		fmt.Printf("%s%s %s %q\n", release, dir, file, os.Args[1:])
		fmt.Fprintln(os.Stderr, "and this")
		os.Exit(3)
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), &env{stdout: &out, stderr: &errs}, args)
	return code, out.String(), errs.String()
}

func TestRun(t *testing.T) {
	qemu.Need(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if initramfs.CheckStatic(program) != nil {
		program = filepath.Join(t.TempDir(), "testvm.test")
		build := exec.Command("go", "test", "-c", "-o", program, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building this test for guests: %v\n%s", err, out)
		}
	}
	file := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := command(t, "run", "--modules", "veth", "--memory", "512", "--cpus", "1",
		"--env", insideEnv+"=1", "--file", "/data/file="+file, "--chdir", "/data", "--", program, "-a", "b c")
	release, rest, _ := strings.Cut(stdout, "\n")
	if code != 3 || !strings.HasPrefix(release, "6.12.") || rest != "/data content [\"-a\" \"b c\"]\n" || stderr != "and this\n" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestRefused(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no command", []string{"run"}, exitUsage, "testvm run --help"},
		{"unknown flag", []string{"run", "--colour", "--", "/bin/true"}, exitUsage, "--colour"},
		{"unknown command", []string{"fly"}, exitUsage, "fly"},
		{"unknown kernel to fetch", []string{"fetch", "2.4"}, exitUsage, "2.4"},
		{"dynamic program", []string{"run", "--", "/bin/sh"}, exitFailed, "CGO_ENABLED=0"},
		{"program that is not there", []string{"run", "--", "/nowhere"}, exitFailed, "/nowhere"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := command(t, test.args...)
			if code != test.code || stdout != "" || !strings.HasPrefix(stderr, "testvm: ") || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want code %d and %q", code, stdout, stderr, test.code, test.want)
			}
		})
	}
}

func TestKernels(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(kernel.DirEnv, dir)
	if err := os.Mkdir(filepath.Join(dir, "6.1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "6.1", "release"), []byte("6.1.2-test\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := command(t, "kernels", "--json")
	var got []cached
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || stderr != "" {
		t.Fatalf("exit code %d, %v, stdout %q, stderr %q", code, err, stdout, stderr)
	}
	want := []cached{{Name: "5.10"}, {"6.1", true, "6.1.2-test"}, {Name: "6.12"}, {Name: "6.18"}, {Name: "newest"}}
	if !slices.Equal(got, want) {
		t.Errorf("the kernels are %v, want %v", got, want)
	}
	const table = "KERNEL  CACHED RELEASE\n5.10    -\n6.1     6.1.2-test\n6.12    -\n6.18    -\nnewest  -\n"
	if code, stdout, _ := command(t, "kernels"); code != 0 || stdout != table {
		t.Errorf("exit code %d, stdout\n%s, want\n%s", code, stdout, table)
	}
}

func TestParseNIC(t *testing.T) {
	got, err := parseNIC("tap0,queues=4,mac=02:00:00:00:00:01,host_mtu=9000,csum=off")
	if err != nil || got.Tap != "tap0" || got.Queues != 4 || got.MAC != "02:00:00:00:00:01" ||
		!slices.Equal(got.Options, []string{"host_mtu=9000", "csum=off"}) {
		t.Errorf("got %+v (%v)", got, err)
	}
	for _, s := range []string{"", "tap0,", "tap0,queues=no", "tap0,queues=0"} {
		if n, err := parseNIC(s); err == nil {
			t.Errorf("%q is taken for %+v", s, n)
		}
	}
}
