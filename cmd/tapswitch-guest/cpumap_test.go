package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/tapswitch/tapswitch/guestbpf"
)

// flow gives a frame from one of many ports.
func flow(n int) []byte {
	f := udp(guestMACs[0], farMACs[0], 100)
	binary.BigEndian.PutUint16(f[34:], uint16(1000+n))
	return f
}

// allCPUs gives a list of those that are online.
func allCPUs(t *testing.T) string {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	cpus, err := guestbpf.ParseCPUs(string(text[:len(text)-1]))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("0-%d", len(cpus)-1)
}

// Behind CPUs each mode does as without them, and no frame is lost.
func TestCpumap(t *testing.T) {
	b := newRouter(t)
	cpus := allCPUs(t)
	spread := func(from, to, want int) {
		t.Helper()
		for n := range many {
			if err := b.far[from].Send(flow(n)); err != nil {
				t.Fatal(err)
			}
		}
		if want > 0 {
			b.send(from, flow(0), 0, to, want)
		}
	}
	count := func(verdict string, want uint64) {
		t.Helper()
		if got := frames(b.stats("eth0"), verdict); got != want {
			t.Errorf("%d frames were counted as %s, want %d", got, verdict, want)
		}
	}

	b.must("", "attach", "cpumap", "eth0", "--cpus", cpus, "--then", "l2fwd", "--to", "eth1")
	spread(0, 1, many)
	count("spread", many)
	count("forward", many)
	if a := b.stats("eth0"); a.Mode != guestbpf.L2fwd || len(a.CPUs) == 0 || !slices.Equal(a.Partners, []string{"eth1"}) {
		t.Errorf("it is %+v", a)
	}
	b.must("", "detach", "eth0")

	b.must("", "attach", "cpumap", "eth0", "eth1", "--cpus", cpus, "--then", "l3fwd", "--fib")
	spread(0, 1, many)
	count("spread", many)
	if got := frames(b.stats("eth0"), "forward"); got < many-1 {
		t.Errorf("%d frames were forwarded, want %d", got, many)
	}
	b.must("", "detach", "eth0")

	b.must("pass proto udp sport 1000\ndrop\n", "attach", "cpumap", "eth0", "--cpus", "0", "--then", "drop", "--rules", "-")
	if a := b.stats("eth0"); len(a.Rules) != 2 || !slices.Equal(a.CPUs, []int{0}) {
		t.Errorf("it is %+v", a)
	}
	b.must("", "attach", "reflect", "eth0")
	if a := b.stats("eth0"); a.Mode != guestbpf.Reflect || a.CPUs != nil {
		t.Errorf("without CPUs it is %+v", a)
	}
	for _, args := range [][]string{
		{"attach", "cpumap", "eth0"}, {"attach", "cpumap", "eth0", "--cpus", "1-0"}, {"attach", "cpumap", "eth0", "--cpus", "0,0"},
		{"attach", "cpumap", "eth0", "--cpus", "0", "--then", "reflect"}, {"attach", "cpumap", "--cpus", "0"},
		{"attach", "cpumap", "eth0", "eth1", "--cpus", "0", "--then", "drop", "--rules", "-"},
	} {
		if code, _, errs := b.run(args...); code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, errs)
		}
	}
	if code, _, errs := b.run("attach", "cpumap", "eth0", "--cpus", "8191"); code != exitFailed {
		t.Errorf("a CPU that is not there: exit code %d: %s", code, errs)
	}
}
