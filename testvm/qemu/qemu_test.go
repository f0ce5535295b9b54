package qemu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/initramfs"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/qemu"
)

// The test's own program runs in the guest as well, and there does one of these.
var actions = map[string]func(){
	// Both streams, no end of line, and more than a pipe holds.
	"write": func() {
		fmt.Print("one\ntwo")
		fmt.Fprint(os.Stderr, "three\x00")
		os.Stdout.Write(bytes.Repeat([]byte("0123456789abcdef"), 20_000))
		os.Exit(3)
	},
	"look": func() {
		release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
		lo, _ := os.ReadFile("/sys/class/net/lo/flags")
		file, err := os.ReadFile("/data/inner/file")
		fmt.Printf("%s%s%s %v %s", release, lo, file, err, os.Getenv("GREETING"))
	},
	"nic": func() {
		mac, err := os.ReadFile("/sys/class/net/eth0/address")
		mtu, _ := os.ReadFile("/sys/class/net/eth0/mtu")
		queues, _ := filepath.Glob("/sys/class/net/eth0/queues/rx-*")
		fmt.Printf("%s%s%d queues %v", mac, mtu, len(queues), err)
	},
	"modules": func() {
		list, _ := os.ReadFile("/proc/modules")
		os.Stdout.Write(list)
	},
	"wait": func() {
		fmt.Println("waiting")
		hang()
	},
	"linger": func() { hang() },
	"orphan": func() {
		// The child outlives its parent and holds its output.
		child := exec.Command("/proc/self/exe")
		child.Env = []string{actionEnv + "=linger"}
		child.Stdout = os.Stdout
		fmt.Println("child:", child.Start())
	},
	"signal": func() { syscall.Kill(os.Getpid(), syscall.SIGKILL); hang() },
	"panic": func() {
		os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0o200)
	},
	"hang": func() {
		os.WriteFile("/dev/console", []byte("last words\n"), 0o200)
		hang()
	},
}

func hang() {
	for {
		time.Sleep(time.Hour)
	}
}

const actionEnv = "TESTVM_TEST_ACTION"

func TestMain(m *testing.M) {
	if action := actions[os.Getenv(actionEnv)]; action != nil {
		action()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program is where this test's program lies in a guest.
const program = "/bin/test"

// machine is one that has this program. Where the tests are linked to libraries,
// a static program is built.
func machine(t *testing.T) qemu.Machine {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	qemu.Need(t)
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if initramfs.CheckStatic(path) != nil {
		path = filepath.Join(t.TempDir(), "test")
		cmd := exec.Command("go", "test", "-c", "-o", path, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building this test for guests: %v\n%s", err, out)
		}
	}
	return qemu.Machine{Files: map[string]string{program: path}, Memory: 512, Log: os.Stderr}
}

func do(action string, env ...string) qemu.Command {
	return qemu.Command{Args: []string{program}, Env: append(env, actionEnv+"="+action)}
}

func start(t *testing.T, m qemu.Machine) *qemu.Guest {
	t.Helper()
	g, err := m.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	return g
}

// output runs an action that must end well.
func output(t *testing.T, g *qemu.Guest, c qemu.Command) string {
	t.Helper()
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	if err := g.Run(t.Context(), c); err != nil {
		t.Fatalf("%v\n%s", err, &errs)
	}
	return out.String()
}

// One machine serves all tests of what goes well, as a boot takes seconds.
func TestGuest(t *testing.T) {
	m := machine(t)
	data := t.TempDir()
	if err := os.MkdirAll(filepath.Join(data, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "inner", "file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Files["/data"] = data
	m.Env = []string{"GREETING=hello"}
	m.Modules = []string{"br_netfilter", "8021q", "nf-tables"}
	var node *lab.Node
	if os.Geteuid() == 0 { // taps need it
		var err error
		if node, err = lab.NewNode("host"); err != nil {
			t.Fatal(err)
		}
		defer node.Close()
		m.NICs = []qemu.NIC{{Tap: "vm0", MAC: "02:00:00:00:00:07", Queues: 2, Options: []string{"host_mtu=1400"}}}
		m.Spawn = node.Start
	}
	g := start(t, m)

	t.Run("NIC", func(t *testing.T) {
		if node == nil {
			t.Skip("SKIPPED: taps need root")
		}
		if got, want := output(t, g, do("nic")), "02:00:00:00:00:07\n1400\n2 queues <nil>"; got != want {
			t.Errorf("the guest has %q, want %q", got, want)
		}
		if _, err := node.Netlink().LinkByName("vm0"); err != nil {
			t.Errorf("finding the tap in the node: %v", err)
		}
	})

	t.Run("output and exit code", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		c := do("write")
		c.Stdout, c.Stderr = &stdout, &stderr
		err := g.Run(t.Context(), c)
		if exit := (*qemu.ExitError)(nil); !errors.As(err, &exit) || exit.Code != 3 || exit.Signal != "" {
			t.Errorf("the command ended with %v, want exit code 3", err)
		}
		if want := "one\ntwo" + strings.Repeat("0123456789abcdef", 20_000); stdout.String() != want {
			t.Errorf("%d bytes on stdout are not the %d written", stdout.Len(), len(want))
		}
		if stderr.String() != "three\x00" {
			t.Errorf("stderr is %q", stderr.String())
		}
	})

	t.Run("surroundings", func(t *testing.T) {
		got := output(t, g, do("look"))
		// IFF_UP and IFF_LOOPBACK.
		if want := g.Release + "\n0x9\ncontent <nil> hello"; got != want {
			t.Errorf("the guest has %q, want %q", got, want)
		}
		if !strings.HasPrefix(g.Release, "6.12.") {
			t.Errorf("the kernel is %s", g.Release)
		}
	})

	t.Run("modules", func(t *testing.T) {
		var loaded []string
		for line := range strings.Lines(output(t, g, do("modules"))) {
			loaded = append(loaded, strings.Fields(line)[0])
		}
		have := strings.Join(loaded, " ") + " "
		for _, want := range []string{"br_netfilter ", "bridge ", "stp ", "llc ", "8021q ", "nf_tables ", "virtio_net "} {
			if !strings.Contains(have, want) {
				t.Errorf("module %sis not loaded, only %s", want, have)
			}
		}
	})

	t.Run("killed by a signal", func(t *testing.T) {
		err := g.Run(t.Context(), do("signal"))
		if exit := (*qemu.ExitError)(nil); !errors.As(err, &exit) || exit.Code != 128+int(syscall.SIGKILL) || exit.Signal == "" {
			t.Errorf("the command ended with %v, want one of SIGKILL", err)
		}
	})

	t.Run("not there", func(t *testing.T) {
		err := g.Run(t.Context(), qemu.Command{Args: []string{"/bin/nothing"}})
		if err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("running nothing gave %v", err)
		}
	})

	t.Run("killed when the context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := do("wait")
		// Output comes while the command runs.
		c.Stdout = writer(func(p []byte) { cancel() })
		if err := g.Run(ctx, c); !errors.Is(err, context.Canceled) {
			t.Errorf("the command ended with %v", err)
		}
	})

	t.Run("commands at once", func(t *testing.T) {
		first, cancel := context.WithCancel(t.Context())
		started, ended := make(chan struct{}), make(chan error)
		c := do("wait")
		c.Stdout = writer(func([]byte) { close(started) })
		go func() { ended <- g.Run(first, c) }()
		<-started
		output(t, g, do("look"))
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the command ended with %v", err)
		}
	})

	t.Run("child left behind", func(t *testing.T) {
		if got := output(t, g, do("orphan")); !strings.HasPrefix(got, "child: <nil>\n") {
			t.Errorf("the command wrote %q", got)
		}
	})

	if err := g.Stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	if err := g.Run(t.Context(), do("look")); err == nil {
		t.Error("a command ran in a guest that was stopped")
	}
}

// writer is a function that takes what is written.
type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

var _ io.Writer = writer(nil)

func TestPanic(t *testing.T) {
	err := qemu.Run(t.Context(), machine(t), do("panic"))
	if err == nil || !strings.Contains(err.Error(), "stopped by itself") || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("a kernel's panic gave: %v", err)
	}
}

func TestHang(t *testing.T) {
	m := machine(t)
	// Some seconds above what a boot takes. On a busy machine it ends the boot.
	m.Timeout = 12 * time.Second
	wants := []string{"ended after 12s", "console"}
	g, err := m.Start(t.Context())
	if err == nil {
		wants = append(wants, "last words")
		err = g.Run(t.Context(), do("hang"))
	}
	for _, want := range wants {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a guest that hangs gave an error without %q: %v", want, err)
		}
	}
}

func TestNoQEMU(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	if _, err := (qemu.Machine{}).Start(t.Context()); err == nil || !strings.Contains(err.Error(), "make deps") {
		t.Errorf("without QEMU the error is %v", err)
	}
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*qemu.Machine)
		want   string
	}{
		{"unknown kernel", func(m *qemu.Machine) { m.Kernel = "2.4" }, "there are 5.10, "},
		{"unknown module", func(m *qemu.Machine) { m.Modules = []string{"flux"} }, "module flux of kernel 6.12."},
		{"no such file", func(m *qemu.Machine) { m.Files["/x"] = "/nowhere" }, "/nowhere"},
		{"no such tap", func(m *qemu.Machine) { m.NICs = []qemu.NIC{{Tap: "no/tap"}} }, "no/tap"},
		{"unknown machine", func(m *qemu.Machine) { m.Type = "abacus" }, "unsupported machine type"},
	} {
		t.Run(test.name, func(t *testing.T) {
			qemu.Need(t)
			m := qemu.Machine{Files: map[string]string{}, Init: "/proc/self/exe"}
			test.change(&m)
			g, err := m.Start(t.Context())
			if err == nil {
				g.Kill()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want one with %q", err, test.want)
			}
		})
	}
}
