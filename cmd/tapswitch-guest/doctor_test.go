package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/tapswitch/tapswitch/guestbpf"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/qemu"
)

func (b *bench) diagnose(dev string) guestbpf.Diagnosis {
	b.Helper()
	var all []guestbpf.Diagnosis
	b.want(json.Unmarshal([]byte(b.must("", "doctor", dev, "--json")), &all))
	return all[0]
}

func TestDoctor(t *testing.T) {
	b := newBench(t)
	if d := b.diagnose("eth0"); d.Driver != "veth" || d.MTU != 1500 || d.Refusal != "" || d.Program != "" || d.Attached {
		t.Errorf("the diagnosis is %+v", d)
	}
	if l, err := b.node.Link("eth0"); err != nil || l.Attrs().Xdp.Attached {
		t.Errorf("the program that was to try is there still, error %v", err)
	}
	b.must("", "attach", "pass", "eth0")
	if d := b.diagnose("eth0"); d.Program != "tapswitch_guest" || !d.Attached {
		t.Errorf("with a program the diagnosis is %+v", d)
	}
	if out := b.must("", "doctor", "eth0"); !strings.Contains(out, "native XDP: tapswitch_guest is attached") {
		t.Errorf("the doctor says\n%s", out)
	}
}

// TestG4ProgramGone takes a program away as a suspend does, below the pins.
func TestG4ProgramGone(t *testing.T) {
	b := newBench(t)
	b.must("", "attach", "pass", "eth0")
	ifindex, err := b.node.Ifindex("eth0")
	b.want(err)
	pins, err := filepath.Glob(filepath.Join(guestbpf.DefaultPins, "*", "link"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("device %d has the pins %q, error %v", ifindex, pins, err)
	}
	l, err := link.LoadPinnedLink(pins[0], nil)
	b.want(err)
	b.want(l.Detach())
	l.Close()
	d := b.diagnose("eth0")
	if len(d.Findings) == 0 || !d.Findings[0].Problem || !strings.Contains(d.Findings[0].Text, "gone from the device") {
		t.Errorf("the diagnosis is %+v", d)
	}
	b.must("", "attach", "pass", "eth0")
	if d := b.diagnose("eth0"); d.Program == "" {
		t.Errorf("after it was attached again the diagnosis is %+v", d)
	}
}

// TestVirtio lets the doctor look at devices of a guest that have something wrong.
func TestVirtio(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	qemu.Need(t)
	program := filepath.Join(t.TempDir(), "tapswitch-guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the program for the guest: %v\n%s", err, out)
	}
	// Issue 6: what a guest's image has room for.
	if info, err := os.Stat(program); err != nil || info.Size() > 6<<20 {
		t.Errorf("the program has %d bytes, want 6 MiB at most, error %v", info.Size(), err)
	}
	host, err := lab.NewNode("host")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	g, err := qemu.Machine{
		Spawn: host.Start,
		Files: map[string]string{"/bin/tapswitch-guest": program},
		Log:   os.Stderr,
		NICs: []qemu.NIC{
			{}, // eth0 has one queue
			{Options: []string{"disable-modern=on", "disable-legacy=off", "any_layout=off"}}, // as old machine types have it
			{Tap: "tap2", Options: []string{"ctrl_guest_offloads=off"}},
			{Options: []string{"host_mtu=9000"}},
			{Tap: "tap4", Queues: 4},
		},
	}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	run := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if err := g.Run(t.Context(), qemu.Command{Args: append([]string{"/bin/tapswitch-guest"}, args...), Stdout: &out, Stderr: &errs}); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, &errs)
		}
		return out.String()
	}
	diagnose := func() map[string]guestbpf.Diagnosis {
		t.Helper()
		var all []guestbpf.Diagnosis
		if err := json.Unmarshal([]byte(run("doctor", "--json")), &all); err != nil {
			t.Fatal(err)
		}
		found := map[string]guestbpf.Diagnosis{}
		for _, d := range all {
			found[d.Device] = d
		}
		return found
	}
	t.Logf("the doctor says\n%s", run("doctor"))
	found := diagnose()
	for _, tt := range []struct {
		name, dev string
		problem   bool
		text, fix string
	}{
		{"G1 old machine type", "eth1", true, "any_header_sg", "<type machine='q35'>"},
		{"G2 too few queues", "eth0", false, "each of 2 CPUs wants one", "queues='4'"},
		{"offloads that stay on", "eth2", true, "GRO_HW", "<guest csum='off'"},
		{"long frames", "eth3", true, "MTU too large", "mtu 1500"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := found[tt.dev]
			if len(d.Findings) == 0 || d.Findings[0].Problem != tt.problem || !strings.Contains(d.Findings[0].Text, tt.text) ||
				!strings.Contains(d.Findings[0].Fix, tt.fix) {
				t.Errorf("the diagnosis is %+v, want %q and %q", d, tt.text, tt.fix)
			}
		})
	}
	if d := found["eth4"]; len(d.Findings) > 0 || d.MaxQueues != 4 {
		t.Errorf("of a device as it should be the diagnosis is %+v", d)
	}
	t.Run("G3 a target needs a program", func(t *testing.T) {
		run("attach", "l2fwd", "eth0", "--to", "eth4")
		for dev, d := range diagnose() {
			if want := dev == "eth0" || dev == "eth4"; (d.Program == "tapswitch_guest") != want {
				t.Errorf("%s has the program %q", dev, d.Program)
			}
		}
		run("detach", "eth4")
	})
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}
