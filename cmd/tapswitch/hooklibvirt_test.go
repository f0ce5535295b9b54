package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/libvirtd"
	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

// TestHookOfLibvirt lets a real libvirtd call the scripts at a real guest's start.
func TestHookOfLibvirt(t *testing.T) {
	if besideLibvirtd(t) {
		return
	}
	n, err := lab.NewNode("host")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Netlink().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}); err != nil {
		t.Fatal(err)
	}
	d, err := libvirtd.Start(t.Context(), n, libvirtd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	etc := func() string { return filepath.Join(rootOf(t, d.Socket), "etc") }

	src := &controltest.Source{Hooks: make(chan control.Hook, 16)}
	c := newConsole(t, src)
	socket := c.vars["TAPSWITCH_SOCKET"]
	command := filepath.Join(t.TempDir(), "tapswitch-hook")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", command, "github.com/tapswitch/tapswitch/cmd/tapswitch-hook")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building tapswitch-hook: %v\n%s", err, out)
	}
	install := func(socket string) {
		t.Helper()
		if code := c.run(t.Context(), "hook", "install", "--dir", filepath.Join(etc(), "libvirt", "hooks"), "--command", command, "--socket", socket); code != exitFine {
			t.Fatalf("installing: exit code %d: %s", code, &c.stderr)
		}
	}
	install(socket)
	// libvirtd looks for hooks when it starts.
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := d.Connect(libvirt.QEMUSystem)
	if err != nil {
		t.Fatal(err)
	}
	start := func(name string) error {
		xml := libvirtd.Guest{Name: name, Interfaces: []string{libvirtd.BridgeInterface("52:54:00:00:00:01", "br0", "")}}.XML()
		dom, err := l.DomainCreateXML(xml, 0)
		if err != nil {
			return err
		}
		return l.DomainDestroy(dom)
	}
	if err := start("web"); err != nil {
		t.Fatal(err)
	}
	want := []string{"prepare begin", "release end", "start begin", "started begin", "stopped end"}
	var told []string
	for range want {
		h := <-src.Hooks
		told = append(told, h.Operation+" "+h.SubOperation)
		if h.Driver != "qemu" || h.Object != "web" || !strings.Contains(string(h.XML), "52:54:00:00:00:01") {
			t.Errorf("hook %+v", h)
		}
	}
	slices.Sort(told)
	if d := cmp.Diff(want, told); d != "" {
		t.Errorf("libvirt told (-want +got):\n%s", d)
	}

	// Nobody answers: guests start, unless they must not.
	install("/nonexistent/t.sock")
	if err := start("lonely"); err != nil {
		t.Errorf("without a daemon: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(etc(), "tapswitch"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(etc(), "tapswitch", "tapswitch.toml"), []byte("strict = true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := start("strict"); err == nil || !strings.Contains(err.Error(), "tapswitchd is not running") {
		t.Errorf("without a daemon, strict: %v, want a refusal that says why", err)
	}
	install(socket)
	if err := start("served"); err != nil {
		t.Errorf("with a daemon, strict: %v", err)
	}
}

// rootOf gives the root directory of the process that listens on a socket.
func rootOf(t *testing.T, socket string) string {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var pid int32
	controlErr := raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = peer.Pid
		}
	})
	if err != nil || controlErr != nil {
		t.Fatal(err, controlErr)
	}
	return fmt.Sprintf("/proc/%d/root", pid)
}
