package libvirt

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
)

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func testMAC(last byte) vswitch.MAC { return vswitch.MAC{0x52, 0x54, 0, 0, 0, last} }

var (
	allOfHost  = Offloads{Checksum: true, GSO: true, TSO4: true, TSO6: true, ECN: true, UFO: true}
	allOfGuest = Offloads{Checksum: true, TSO4: true, TSO6: true, ECN: true, UFO: true}
)

func TestParseDomain(t *testing.T) {
	plain := func(last byte, kind, alias string) Interface {
		return Interface{Type: kind, Alias: alias, MAC: testMAC(last), Queues: 1, HostOffloads: allOfHost, GuestOffloads: allOfGuest}
	}
	with := func(n Interface, change func(*Interface)) Interface { change(&n); return n }
	want := Domain{
		UUID: "3e3fce45-4f53-4fa7-bb32-11f34168b82b", Name: "web & proxy", Running: true, VCPUs: 4,
		Interfaces: []Interface{
			{
				Alias: "net0", Type: "bridge", MAC: testMAC(1), Target: "vnet0", Bridge: "br0", Model: "virtio", Driver: "vhost",
				Queues: 4, LinkDown: true, MTU: 9000, Isolated: true, VLANs: []uint16{42, 47}, Trunk: true, TrustRxFilters: true,
				ToGuest:   &Limit{Average: 1000, Peak: 5000, Burst: 1024, Floor: 200},
				FromGuest: &Limit{Average: 128, Peak: 256, Burst: 256},
				Filter: &FilterRef{Name: "clean-traffic", Parameters: map[string][]string{
					"IP": {"198.18.0.12", "198.18.0.11"}, "CTRL_IP_LEARNING": {"none"},
				}},
				GuestOffloads: Offloads{TSO4: true},
			},
			with(plain(2, "network", "net1"), func(n *Interface) { n.Network, n.Bridge, n.Target, n.Model = "default", "virbr0", "vnet1", "e1000e" }),
			with(plain(3, "bridge", "net2"), func(n *Interface) {
				n.Bridge, n.Target, n.Model, n.VirtualPort = "ovsbr", "vnet2", "virtio", "openvswitch"
			}),
			with(plain(4, "direct", "net3"), func(n *Interface) { n.Target, n.Model = "macvtap0", "virtio" }),
			with(plain(5, "ethernet", "net4"), func(n *Interface) { n.Target, n.Model = "mytap1", "rtl8139" }),
			plain(6, "hostdev", "hostdev0"),
			with(plain(7, "vhostuser", "net6"), func(n *Interface) { n.Model = "virtio" }),
			plain(8, "vdpa", "net7"),
			with(plain(9, "user", "net8"), func(n *Interface) { n.Model = "virtio" }),
			plain(10, "quantum", "net9"),
		},
	}
	got, err := ParseDomain(testdata(t, "rich.xml"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("domain (-want +got):\n%s", d)
	}
}

func TestParseDomainRefuses(t *testing.T) {
	with := func(devices string) string {
		return "<domain><name>d</name><devices>" + devices + "</devices></domain>"
	}
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "reading domain XML: EOF"},
		{"no XML", "hello", "reading domain XML: EOF"},
		{"cut short", "<domain><name>d</name>", "reading domain XML: XML syntax error on line 1: unexpected EOF"},
		{"another element", "<network><name>d</name></network>", "reading domain XML: expected element type <domain> but have <network>"},
		{"two domains", with("") + with(""), "reading domain XML: another element follows the first"},
		{"no name", "<domain/>", "reading domain XML: the domain has no name"},
		{"no UUID", "<domain><name>d</name><uuid>1234</uuid></domain>", `reading domain XML: "1234" is no UUID`},
		{"no MAC", with("<interface type='bridge'><mac address='52:54'/></interface>"), "reading domain XML: interface 1 of d: parsing MAC address: address 52:54: invalid MAC address"},
		{"VLAN", with("<interface type='bridge'><vlan><tag id='4096'/></vlan></interface>"), "reading domain XML: interface 1 of d: VLAN 4096: want 0 to 4095"},
		{"no type", with("<interface/>"), "reading domain XML: Missing interface type attribute"},
		{"an entity of its own", "<!DOCTYPE d [<!ENTITY a 'x'>]><domain><name>&a;</name></domain>", "reading domain XML: XML syntax error on line 1: invalid character entity &a;"},
		{"too long", with(strings.Repeat(" ", MaxXML)), "reading domain XML: has 1048626 bytes, want at most 1048576"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := ParseDomain([]byte(tt.text))
			if err == nil || err.Error() != tt.want {
				t.Errorf("error is %v, want %s", err, tt.want)
			}
			if !cmp.Equal(d, Domain{}) {
				t.Errorf("an error came with %+v", d)
			}
		})
	}
}

func FuzzParseDomain(f *testing.F) {
	rich := testdata(f, "rich.xml")
	f.Add(rich)
	f.Add(rich[:len(rich)/2])
	f.Add(bytes.ReplaceAll(rich, []byte("'"), nil))
	f.Add([]byte("<domain id=''><name>&#x0;</name><devices><interface type=''><driver queues='-1'/><mtu size='99999999999'/></interface></devices></domain>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := ParseDomain(text)
		if err != nil {
			return
		}
		if d.Name == "" || d.VCPUs < 1 {
			t.Errorf("%+v is no domain", d)
		}
		for _, n := range d.Interfaces {
			n.Holds()
			if ok, why := n.Promotable(); why == "" || ok && !n.HasTap() {
				t.Errorf("%+v: promotable %v because %q", n, ok, why)
			}
			if n.Queues < 1 {
				t.Errorf("%d queues", n.Queues)
			}
		}
	})
}
