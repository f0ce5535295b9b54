package main

import (
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// NICs that are no taps on a bridge are left alone, and listed with the reason.
func TestL8OtherInterfaces(t *testing.T) {
	h := newLibvirtHost(t, lab.Options{})
	for _, args := range []string{"link add nic1 type veth peer name far1", "link set nic1 up", "link set far1 up"} {
		h.ip(t, args)
	}
	network := must[libvirt.Network](t)(h.conn.NetworkDefineXML(
		"<network><name>direct</name><forward mode='bridge'><interface dev='nic1'/></forward></network>"))
	check(t, h.conn.NetworkCreate(network))
	socket := filepath.Join(h.virt.Dir(), "vhost.sock")
	serveVhostUser(t, socket)
	nics := []struct{ xml, kind, why string }{
		{"<interface type='user'>", "user", "the guest is behind a network stack of its own in a process"},
		{"<interface type='ethernet'>", "ethernet", "libvirt puts the tap of <interface type='ethernet'> on no bridge"},
		{"<interface type='direct'><source dev='nic1' mode='bridge'/>", "direct", "a macvtap sits on its NIC itself"},
		{"<interface type='network'><source network='direct'/>", "direct", "a macvtap sits on its NIC itself"},
		{"<interface type='vhostuser'><source type='unix' path='" + socket + "' mode='client'/>", "vhostuser", "frames go to another process's switch by shared memory"},
		{"<interface type='server'><source address='127.0.0.1' port='5558'/>", "server", "frames go through a socket of QEMU's"},
		{"<interface type='udp'><source address='127.0.0.1' port='5559'><local address='127.0.0.1' port='5560'/></source>", "udp", "frames go through a socket of QEMU's"},
	}
	g := oneNIC("a", 0)
	for i, n := range nics {
		g.Interfaces = append(g.Interfaces, n.xml+"<mac address='"+guestAddr(1+i)+"'/><model type='virtio'/></interface>")
	}
	dom := h.create(t, g, "vnet0")
	if ports := h.ports(t); len(ports) != 2 { // with the NIC
		t.Errorf("ports are %+v, want the NIC and that on the bridge", ports)
	}
	want := map[string]string{}
	for i, n := range nics {
		want[guestAddr(1+i)] = n.kind + ": " + n.why
	}
	got := map[string]string{}
	st, err := h.api.Status(t.Context())
	check(t, err)
	for _, p := range st.Libvirt.Portless {
		why := p.Why
		if w := want[p.MAC.String()]; strings.HasPrefix(p.Type+": "+p.Why, w) {
			_, why, _ = strings.Cut(w, ": ")
		}
		got[p.MAC.String()] = p.Type + ": " + why
		if p.Domain != "a" || p.Alias == "" {
			t.Errorf("a NIC without a port is that of %+v", p)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("NICs without a port (-want +got):\n%s", d)
	}
	h.checkConsistent(t)

	// One is put onto the bridge, and taken from it.
	tap := "vnet1"
	h.ip(t, "link set "+tap+" master br0")
	h.awaitGuest(t, tap, "a")
	if st, err = h.api.Status(t.Context()); err != nil || len(st.Libvirt.Portless) != len(nics)-1 {
		t.Errorf("with %s on the bridge these NICs have no port: %+v (%v)", tap, st.Libvirt.Portless, err)
	}
	h.ip(t, "link set "+tap+" nomaster")
	h.awaitNoPort(t, tap)
	h.checkConsistent(t)
	h.destroy(t, dom, "vnet0")
}

// serveVhostUser stands for another process's switch, as far as QEMU's start needs it.
func serveVhostUser(t *testing.T, socket string) {
	t.Helper()
	l := must[net.Listener](t)(net.Listen("unix", socket))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answerVhostUser(conn)
		}
	}()
}

// answerVhostUser answers QEMU's questions as one without any features does.
func answerVhostUser(conn net.Conn) {
	defer conn.Close()
	const (
		getFeatures = 1
		version     = 1
		isAnswer    = 1 << 2
		virtioV1    = 1 << 32
	)
	for {
		var head struct{ Request, Flags, Size uint32 }
		if binary.Read(conn, binary.NativeEndian, &head) != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, conn, int64(head.Size)); err != nil {
			return
		}
		if head.Request != getFeatures {
			continue // nothing else wants an answer while the guest has no driver
		}
		head.Flags, head.Size = version|isAnswer, 8
		if binary.Write(conn, binary.NativeEndian, head) != nil || binary.Write(conn, binary.NativeEndian, uint64(virtioV1)) != nil {
			return
		}
	}
}
