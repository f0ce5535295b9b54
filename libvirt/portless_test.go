package libvirt

import (
	"slices"
	"strings"
	"testing"

	"github.com/beevik/etree"
	"github.com/google/go-cmp/cmp"
)

func TestFindPortless(t *testing.T) {
	nic := func(alias, kind string, change func(*Interface)) Interface {
		n := Interface{Alias: alias, Type: kind, MAC: testMAC(1), Target: "vnet" + alias}
		if change != nil {
			change(&n)
		}
		return n
	}
	onBridge := func(n *Interface) { n.Bridge = "br0" }
	web := Domain{UUID: "w", Name: "web", Interfaces: []Interface{
		nic("0", "bridge", onBridge), nic("1", "bridge", onBridge), nic("2", "direct", nil), nic("3", "ethernet", nil), nic("4", "network", nil),
		nic("5", "bridge", func(n *Interface) { n.VirtualPort = "openvswitch" }),
	}}
	app := Domain{UUID: "a", Name: "app", Interfaces: []Interface{nic("0", "user", nil)}}
	matched := map[int]Guest{7: {UUID: "w", Domain: "web", Interface: web.Interfaces[0]}}
	var got []string
	for _, p := range FindPortless(map[string]Reading{"w": {Domain: web}, "a": {Domain: app}}, matched) {
		got = append(got, p.Domain+" "+p.Alias+": "+p.Why)
	}
	want := []string{
		"app 0: the guest is behind a network stack of its own in a process, with no tap; <interface type='bridge'> is what the fast path serves",
		"web 1: its tap vnet1 is not a port of bridge br0: ip link set vnet1 master br0",
		"web 2: a macvtap sits on its NIC itself, past any bridge; <interface type='bridge'> is what the fast path serves",
		"web 3: libvirt puts the tap of <interface type='ethernet'> on no bridge; it is fast where something else does",
		"web 4: its tap vnet4 is a port of no bridge",
		"web 5: <virtualport type='openvswitch'> is no port of a Linux bridge, but of a switch of another kind",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("NICs without a port (-want +got):\n%s", d)
	}
}

// schema is libvirt's own, of the package that its daemon needs.
const schema = "/usr/share/libvirt/schemas/domaincommon.rng"

// Each type of interface in libvirt's schema is told apart from what is not known.
func TestL8TypesOfLibvirtsSchema(t *testing.T) {
	doc := etree.NewDocument()
	if err := doc.ReadFromFile(schema); err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, e := range doc.FindElements("//define[@name='interface']/element/choice/group/attribute[@name='type']//value") {
		types = append(types, e.Text())
	}
	for _, kind := range []string{"bridge", "direct", "ethernet", "hostdev", "mcast", "network", "user", "vhostuser"} {
		if !slices.Contains(types, kind) {
			t.Errorf("type %s is not found in %s: %v", kind, schema, types)
		}
	}
	for _, kind := range types {
		if why := (Interface{Type: kind}).apart(); strings.Contains(why, "not known") {
			t.Errorf("<interface type='%s'>: %s", kind, why)
		}
	}
	if why := (Interface{Type: "quantum"}).apart(); !strings.Contains(why, "not known") {
		t.Errorf("<interface type='quantum'>: %q", why)
	}
}
