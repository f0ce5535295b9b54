package libvirtd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

func TestDaemon(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log bytes.Buffer
	d, err := Start(ctx, l.Host, Options{Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	dir := d.Dir()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	dom := lives(t, d)
	if err := l.Host.WaitRunning(ctx, "vnet0"); err != nil {
		t.Error(err)
	}
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Connect(libvirt.QEMUSystem); err == nil {
		t.Error("a killed libvirtd answers")
	}
	if err := l.Host.WaitRunning(ctx, "vnet0"); err != nil {
		t.Error("a guest does not outlive its libvirtd:", err)
	}
	if err := d.Run(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := d.Connect(libvirt.QEMUSystem)
	if err != nil {
		t.Fatal(err)
	}
	if active, err := c.DomainIsActive(dom); err != nil || active != 1 {
		t.Errorf("after a restart the guest is %d (%v), want 1, active", active, err)
	}
	index, err := l.Host.Ifindex("vnet0")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Host.WaitGone(ctx, index); err != nil {
		t.Error("a guest outlives the daemon that was closed:", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", dir)
	}
	links, err := l.Host.Netlink().LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if _, tap := link.(*netlink.Tuntap); tap {
			t.Errorf("%s is left", link.Attrs().Name)
		}
	}
}

// lives makes a guest with a tap on the lab's bridge.
func lives(t *testing.T, d *Daemon) libvirt.Domain {
	t.Helper()
	c, err := d.Connect(libvirt.QEMUSystem)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Disconnect()
	g := Guest{Name: "a", Interfaces: []string{BridgeInterface("52:54:00:00:00:01", lab.BridgeDev, "")}}
	dom, err := c.DomainCreateXML(g.XML(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return dom
}
