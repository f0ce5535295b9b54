package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/guestbpf"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/livegen"
)

func TestMain(m *testing.M) { lab.Main(m) }

// A bench is a guest with two devices, eth0 and eth1, and the wires' far ends far0 and
// far1 in the same namespace.
type bench struct {
	*testing.T
	node *lab.Node
	far  [2]*lab.Packet
}

var (
	guestMACs = [2]net.HardwareAddr{{2, 0, 0, 0, 0, 0x10}, {2, 0, 0, 0, 0, 0x11}}
	farMACs   = [2]net.HardwareAddr{{2, 0, 0, 0, 0, 0x20}, {2, 0, 0, 0, 0, 0x21}}
)

func newBench(t *testing.T) *bench {
	node, err := lab.NewNode("guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	b := &bench{T: t, node: node}
	for i, name := range []string{"eth0", "eth1"} {
		far := "far" + name[3:]
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: name, HardwareAddr: guestMACs[i]})
		veth.PeerName, veth.PeerHardwareAddr = far, farMACs[i]
		if err := node.Netlink().LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		for _, dev := range []string{name, far} {
			if err := node.SetUp(dev); err != nil {
				t.Fatal(err)
			}
			// A veth takes redirected frames only if its peer's driver polls.
			if err := node.SetOffload(dev, lab.GRO, true); err != nil {
				t.Fatal(err)
			}
		}
		p, err := lab.OpenPacket(node, far)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		p.Keep(isUDP)
		b.far[i] = p
	}
	t.Cleanup(func() { b.run("detach", "--all") })
	return b
}

// isUDP leaves out what stacks send by themselves.
func isUDP(f []byte) bool { return len(f) > 23 && f[12] == 8 && f[13] == 0 && f[23] == 17 }

// run gives the exit code and what was written.
func (b *bench) run(args ...string) (code int, stdout, stderr string) {
	return b.runIn(context.Background(), "", args...)
}

func (b *bench) runIn(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	b.Helper()
	var out, errs bytes.Buffer
	b.node.Do(func() error {
		e := &env{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs, after: time.After}
		code = e.run(ctx, args)
		return nil
	})
	return code, out.String(), errs.String()
}

func (b *bench) must(stdin string, args ...string) string {
	b.Helper()
	code, out, errs := b.runIn(context.Background(), stdin, args...)
	if code != exitFine {
		b.Fatalf("%v: exit code %d: %s", args, code, errs)
	}
	return out
}

// send sends n frames from a far end, of which want come to a far end.
func (b *bench) send(from int, frame []byte, n, to, want int) []lab.Frame {
	b.Helper()
	for range n {
		if err := b.far[from].Send(frame); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
	defer cancel()
	got, err := b.far[to].Collect(ctx, want)
	if err != nil {
		b.Fatalf("of %d frames %d came back: %v; counters: %s", n, len(got), err, b.must("", "stats"))
	}
	return got
}

func (b *bench) stats(dev string) guestbpf.Attachment {
	b.Helper()
	var list []guestbpf.Attachment
	if err := json.Unmarshal([]byte(b.must("", "stats", "--json")), &list); err != nil {
		b.Fatal(err)
	}
	for _, a := range list {
		if a.Device == dev {
			return a
		}
	}
	b.Fatalf("nothing is attached to %s", dev)
	return guestbpf.Attachment{}
}

func frames(a guestbpf.Attachment, verdict string) uint64 {
	for _, v := range a.Verdicts {
		if v.Verdict == verdict {
			return v.Frames
		}
	}
	return 0
}

func udp(to, from net.HardwareAddr, size int) []byte {
	return livegen.UDPFrame([6]byte(to), [6]byte(from), size)
}

const many = 1000

func TestReflect(t *testing.T) {
	b := newBench(t)
	b.must("", "attach", "reflect", "eth0")
	// A veth wakes its peer for frames sent by XDP_TX only if that has a program too.
	b.must("", "attach", "pass", "far0")
	want := udp(farMACs[0], guestMACs[0], 100)
	for _, f := range b.send(0, udp(guestMACs[0], farMACs[0], 100), many, 0, many) {
		if !bytes.Equal(f.Data, want) {
			t.Fatalf("the frame came back as %x", f.Data)
		}
	}
	if got := frames(b.stats("eth0"), "reflect"); got != many {
		t.Errorf("%d frames were counted, want %d", got, many)
	}
}

func TestDropReplacesRules(t *testing.T) {
	b := newBench(t)
	b.must("pass proto udp dport 10\ndrop from 198.18.0.1 proto udp dport 9\n", "attach", "drop", "eth0", "--rules", "-")
	frame := udp(guestMACs[0], farMACs[0], 100)
	b.send(0, frame, many, 0, 0)
	a := b.stats("eth0")
	if frames(a, "drop") != many || len(a.Rules) != 2 || a.Rules[1].Frames != many || a.Rules[1].Bytes != many*100 || a.Rules[0].Frames != 0 {
		t.Errorf("after %d frames the counters are %+v", many, a)
	}

	code, _, errs := b.runIn(t.Context(), "pass\n drop from 198.18.0.1 dport 9\n", "attach", "drop", "eth0", "--rules", "-")
	if code != exitFailed || !strings.Contains(errs, "line 2, column 23") {
		t.Errorf("a bad rule gave exit code %d: %s", code, errs)
	}
	b.send(0, frame, many, 0, 0)
	if a := b.stats("eth0"); a.Rules[1].Frames != 2*many {
		t.Errorf("after a bad rule the old ones counted %d frames, want %d", a.Rules[1].Frames, 2*many)
	}

	// The counters of rules begin anew, the verdicts go on.
	b.must("drop\n", "attach", "drop", "eth0", "--rules", "-")
	b.send(0, frame, many, 0, 0)
	if a := b.stats("eth0"); len(a.Rules) != 1 || a.Rules[0].Frames < many || frames(a, "drop") < 3*many {
		t.Errorf("after new rules the counters are %+v", a)
	}
}

func TestL2fwd(t *testing.T) {
	b := newBench(t)
	// One that is promiscuous for another reason stays so.
	wantPromiscuous := func(eth0, eth1 bool) {
		t.Helper()
		for dev, want := range map[string]bool{"eth0": eth0, "eth1": eth1} {
			if l, err := b.node.Link(dev); err != nil || l.Attrs().Promisc > 0 != want {
				t.Errorf("%s is promiscuous %d times, want %v, error %v", dev, l.Attrs().Promisc, want, err)
			}
		}
	}
	eth1, err := b.node.Link("eth1")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.node.Netlink().SetPromiscOn(eth1); err != nil {
		t.Fatal(err)
	}
	b.must("", "attach", "l2fwd", "eth0", "--to", "eth1", "--dest", farMACs[1].String())
	wantPromiscuous(true, true)
	for _, f := range b.send(0, udp(guestMACs[0], farMACs[0], 100), many, 1, many) {
		if want := udp(farMACs[1], guestMACs[1], 100); !bytes.Equal(f.Data, want) {
			t.Fatalf("the frame came as %x, want %x", f.Data, want)
		}
	}
	back := udp(farMACs[0], farMACs[1], 100)
	for _, f := range b.send(1, back, many, 0, many) {
		if !bytes.Equal(f.Data, back) {
			t.Fatalf("the frame came as %x, want %x", f.Data, back)
		}
	}
	if a := b.stats("eth0"); frames(a, "forward") < many || !slices.Equal(a.Partners, []string{"eth1"}) {
		t.Errorf("the counters are %+v", a)
	}
	if code, _, errs := b.run("attach", "pass", "eth1"); code != exitFailed || !strings.Contains(errs, "detach it first") {
		t.Errorf("changing half of a pair gave exit code %d: %s", code, errs)
	}
	if out := b.must("", "detach", "eth1"); out != "detached eth0\ndetached eth1\n" {
		t.Errorf("detaching said %q", out)
	}
	if out := b.must("", "status"); out != "nothing is attached\n" {
		t.Errorf("the status is %q", out)
	}
	wantPromiscuous(false, true)
	for _, dev := range []string{"eth0", "eth1"} {
		if l, err := b.node.Link(dev); err != nil || l.Attrs().Xdp.Attached {
			t.Errorf("%s has a program still, error %v", dev, err)
		}
	}
}

func TestForeignProgramStays(t *testing.T) {
	b := newBench(t)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "theirs", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var l link.Link
	ifindex, err := b.node.Ifindex("eth1")
	if err != nil {
		t.Fatal(err)
	}
	err = b.node.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: ifindex})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// The pair's first half is taken off again.
	for _, args := range [][]string{{"attach", "pass", "eth1"}, {"attach", "l2fwd", "eth0", "--to", "eth1"}} {
		if code, _, errs := b.run(args...); code != exitFailed || !strings.Contains(errs, "(theirs) of somebody else is on eth1") {
			t.Errorf("%v gave exit code %d: %s", args, code, errs)
		}
	}
	if code, _, errs := b.run("detach", "eth1"); code != exitFailed || !strings.Contains(errs, "nothing of tapswitch-guest") {
		t.Errorf("detaching gave exit code %d: %s", code, errs)
	}
	if x, err := b.node.Link("eth0"); err != nil || x.Attrs().Xdp.Attached {
		t.Errorf("eth0 has a program, error %v", err)
	}
	if info, err := l.Info(); err != nil || info.XDP().Ifindex != uint32(ifindex) {
		t.Errorf("the foreign program is gone, error %v", err)
	}
}

// A refusal has the driver's own words.
func TestDriversWords(t *testing.T) {
	b := newBench(t)
	far, err := b.node.Link("far0")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.node.Netlink().LinkSetMTU(far, 9000); err != nil {
		t.Fatal(err)
	}
	code, _, errs := b.run("attach", "pass", "eth0")
	if code != exitFailed || !strings.Contains(errs, "MTU is too large") {
		t.Errorf("the exit code is %d: %s", code, errs)
	}
}

func TestForeground(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as if interrupted at once
	if code, _, errs := b.runIn(ctx, "", "attach", "pass", "eth0", "--foreground"); code != exitFine {
		t.Errorf("the exit code is %d: %s", code, errs)
	}
	if l, err := b.node.Link("eth0"); err != nil || l.Attrs().Xdp.Attached {
		t.Errorf("the program is there still, error %v", err)
	}
	b.must("", "detach", "--all")
	if _, err := os.Stat(guestbpf.DefaultPins); !os.IsNotExist(err) {
		t.Errorf("the pins' directory is there still: %v", err)
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
	}{
		{"", exitUsage}, {"fly", exitUsage}, {"attach", exitUsage}, {"attach fly eth0", exitUsage},
		{"attach pass", exitUsage}, {"attach pass eth0 eth1", exitUsage}, {"attach drop eth0", exitUsage},
		{"attach l2fwd eth0", exitUsage}, {"attach l2fwd eth0 --to eth1 --dest 01:00:00:00:00:00", exitUsage},
		{"attach pass eth0 --rules x", exitUsage}, {"detach", exitUsage}, {"stats --interval 0s", exitUsage},
		{"--help", exitFine}, {"version", exitFine}, {"attach pass nowhere0", exitFailed},
	} {
		var out bytes.Buffer
		e := &env{stdin: strings.NewReader(""), stdout: &out, stderr: &out, after: time.After}
		if code := e.run(t.Context(), strings.Fields(tt.args)); code != tt.code {
			t.Errorf("%q: exit code %d, want %d: %s", tt.args, code, tt.code, &out)
		}
	}
}
