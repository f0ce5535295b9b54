package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func testNode(t *testing.T, name string) *Node {
	t.Helper()
	n, err := NewNode(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func currentNS(t *testing.T) string {
	t.Helper()
	s, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNodeDoEntersAndLeaves(t *testing.T) {
	a, b := testNode(t, "a"), testNode(t, "b")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	outside := currentNS(t)
	var inA, inB, againInA string
	err := a.Do(func() error {
		inA = currentNS(t)
		err := b.Do(func() error { inB = currentNS(t); return nil })
		againInA = currentNS(t)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if inA == outside || inB == outside || inA == inB {
		t.Errorf("a is %s, b is %s, outside is %s: want three", inA, inB, outside)
	}
	if againInA != inA {
		t.Errorf("after b, a is %s, want %s", againInA, inA)
	}
	// Threads that were inside are used again, and must be outside.
	for range 200 {
		if err := a.Do(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		seen := make(chan string)
		go func() { seen <- currentNS(t) }()
		if got := <-seen; got != outside {
			t.Fatalf("a thread stayed in %s, want %s", got, outside)
		}
	}
}

func TestNodeDoGivesErrorPanicAndGoexit(t *testing.T) {
	n := testNode(t, "n")
	if err := n.Do(func() error { return io.ErrUnexpectedEOF }); err != io.ErrUnexpectedEOF {
		t.Errorf("error is %v, want f's", err)
	}
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v, want boom", r)
			}
		}()
		n.Do(func() error { panic("boom") })
	}()
	came, ended := false, make(chan struct{})
	go func() {
		defer close(ended)
		n.Do(func() error { runtime.Goexit(); return nil })
		came = true
	}()
	<-ended
	if came {
		t.Error("Do returned after its function called Goexit")
	}
}

func TestNodeDoAfterClose(t *testing.T) {
	n := testNode(t, "n")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Do(func() error { t.Error("f ran"); return nil }); err == nil {
		t.Error("no error")
	}
	if err := n.Command(t.Context(), "true").Run(); err == nil {
		t.Error("a command ran in a closed node")
	}
}

func TestNodeSocketsAreInside(t *testing.T) {
	n := testNode(t, "n")
	ctx := testContext(t)
	l, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener is reachable from outside")
	}
	c, err := n.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	p, err := n.ListenPacket("udp", "[::1]:0") // IPv6 works at once
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := n.Dial(ctx, "tcp", "localhost:1"); err == nil || !strings.Contains(err.Error(), "localhost") {
		t.Errorf("dialing a name: %v, want an error that says so", err)
	}
}

func TestNodeHasNoDuplicateAddressDetection(t *testing.T) {
	n := testNode(t, "n")
	tap, err := OpenTap(n, "eth0", TapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	if err := n.SetUp("eth0"); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitRunning(testContext(t), "eth0"); err != nil {
		t.Fatal(err)
	}
	// As a program under test does it, which doesn't say nodad.
	if err := n.Command(testContext(t), "ip", "addr", "add", "2001:db8::5/64", "dev", "eth0").Run(); err != nil {
		t.Fatal(err)
	}
	// Detection takes a second and more.
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
	defer cancel()
	err = n.WaitUntil(ctx, "the address is usable", func(h *netlink.Handle) (bool, error) {
		addrs, err := h.AddrList(nil, unix.AF_INET6)
		for _, a := range addrs {
			if a.IP.Equal(net.ParseIP("2001:db8::5")) {
				return a.Flags&unix.IFA_F_TENTATIVE == 0, err
			}
		}
		return false, err
	})
	if err != nil {
		t.Error(err)
	}
	// AddAddr's addresses wait for nothing.
	if err := n.AddAddr("eth0", netip.MustParsePrefix("2001:db8::6/64")); err != nil {
		t.Fatal(err)
	}
	p, err := n.ListenPacket("udp", "[2001:db8::6]:0")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}

func TestNodeSysctlIsItsOwn(t *testing.T) {
	a, b := testNode(t, "a"), testNode(t, "b")
	const name = "net/ipv4/ip_forward"
	before, err := b.Sysctl(name)
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"0": "1", "1": "0"}[before]
	if err := a.SetSysctl(name, other); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Sysctl(name); err != nil || got != other {
		t.Errorf("a has %q (%v), want %q", got, err, other)
	}
	if got, err := b.Sysctl(name); err != nil || got != before {
		t.Errorf("b has %q (%v), want %q", got, err, before)
	}
	if err := a.SetSysctl("net/no/such", "1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an unknown sysctl gives %v, want os.ErrNotExist", err)
	}
}

func TestCommandRunsInside(t *testing.T) {
	n := testNode(t, "n")
	var want string
	if err := n.Do(func() error { want = currentNS(t); return nil }); err != nil {
		t.Fatal(err)
	}
	got, err := n.Command(testContext(t), "readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(got)) != want {
		t.Errorf("the command ran in %s, want %s", got, want)
	}
	if _, err := n.Command(testContext(t), "sh", "-c", "echo no good >&2; exit 3").Output(); err == nil || !strings.Contains(err.Error(), "no good") {
		t.Errorf("error is %v, want what the command said", err)
	}
}

func TestCommandSurvivesOtherThreadsAndEndsWithItsNode(t *testing.T) {
	n := testNode(t, "n")
	cmd := n.Command(testContext(t), "sh", "-c", "read line; echo got $line; read line")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Threads end with goroutines that stay locked: none may be the command's.
	for range 20 {
		done := make(chan struct{})
		goThread(func() { close(done) })
		<-done
	}
	io.WriteString(stdin, "it\n")
	b := make([]byte, 7)
	if _, err := io.ReadFull(stdout, b); err != nil || string(b) != "got it\n" {
		t.Fatalf("read %q (%v), want an answer", b, err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the command ended with %v, want killed", err)
	}
}

func TestNodeIsGoneAfterClose(t *testing.T) {
	n := testNode(t, "n")
	ns := n.ns
	if !ns.IsOpen() {
		t.Fatal("the namespace is not open")
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if err := netns.Set(ns); err == nil {
		t.Error("the namespace can still be entered")
	}
}
