package bridge

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

func TestSettings(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br := addBridge(t, "br0")
	guest := addTap(t, "vnet0").index
	other := addTap(t, "vnet1").index
	enslave(t, guest, br)
	enslave(t, other, br)
	f.wantPort("a port at its defaults has no settings", guest, func(p vswitch.Port) bool { return p.Settings == nil })

	on, off := []byte{1}, []byte{0}
	for _, tc := range []struct {
		attr      int
		set, back []byte
		want      string
	}{
		{nl.IFLA_BRPORT_PROXYARP, on, off, "proxy_arp=on"},
		{nl.IFLA_BRPORT_PROXYARP_WIFI, on, off, "proxy_arp_wifi=on"},
		{nl.IFLA_BRPORT_NEIGH_SUPPRESS, on, off, "neigh_suppress=on"},
		{unix.IFLA_BRPORT_NEIGH_VLAN_SUPPRESS, on, off, "neigh_vlan_suppress=on"},
		{nl.IFLA_BRPORT_VLAN_TUNNEL, on, off, "vlan_tunnel=on"},
		{unix.IFLA_BRPORT_BACKUP_NHID, []byte{7, 0, 0, 0}, make([]byte, 4), "backup_nhid=7"},
	} {
		if !hasPort(t, guest, tc.attr) {
			t.Logf("SKIPPED: %s, which this kernel does not have", tc.want)
			continue
		}
		setPort(t, guest, tc.attr, tc.set)
		f.wantPort(tc.want, guest, func(p vswitch.Port) bool { return slices.Equal(p.Settings, []string{tc.want}) })
		f.wantFresh()
		setPort(t, guest, tc.attr, tc.back)
		f.wantPort("no settings after "+tc.want, guest, func(p vswitch.Port) bool { return p.Settings == nil })
	}

	// Those that the fast path honours.
	for attr, want := range map[int]vswitch.PortFlags{
		nl.IFLA_BRPORT_ISOLATED: {Isolated: true}, nl.IFLA_BRPORT_LOCKED: {Locked: true},
	} {
		if !hasPort(t, guest, attr) {
			t.Logf("SKIPPED: %+v, which this kernel does not have", want)
			continue
		}
		setPort(t, guest, attr, on)
		f.wantPort("flags", guest, func(p vswitch.Port) bool { return p.Flags == want && p.Settings == nil })
		f.wantFresh()
		setPort(t, guest, attr, off)
		f.wantPort("no flags", guest, func(p vswitch.Port) bool { return p.Flags == vswitch.PortFlags{} })
	}

	// What can't matter to a known unicast frame does not hold a port back.
	for attr, v := range map[int][]byte{
		nl.IFLA_BRPORT_MODE: on, nl.IFLA_BRPORT_GUARD: on, nl.IFLA_BRPORT_PROTECT: on, nl.IFLA_BRPORT_FAST_LEAVE: on,
		nl.IFLA_BRPORT_LEARNING: off, nl.IFLA_BRPORT_UNICAST_FLOOD: off, nl.IFLA_BRPORT_MCAST_FLOOD: off,
		nl.IFLA_BRPORT_BCAST_FLOOD: off, nl.IFLA_BRPORT_MCAST_TO_UCAST: on, nl.IFLA_BRPORT_COST: {9, 0, 0, 0},
		nl.IFLA_BRPORT_PRIORITY: {9, 0}, nl.IFLA_BRPORT_GROUP_FWD_MASK: {8, 0}, nl.IFLA_BRPORT_MULTICAST_ROUTER: {2},
	} {
		setPort(t, guest, attr, v)
		f.sync()
		if s := f.Ports[guest].Settings; s != nil {
			t.Errorf("attribute %d of value %v holds the port back: %v", attr, v, s)
		}
	}
	if f.links[guest].learning || !f.links[other].learning {
		t.Error("the learning flag is not kept")
	}
	f.wantFresh()
}

func TestSettingsTable(t *testing.T) {
	for attr, s := range settings {
		if attr != nl.IFLA_BRPORT_UNSPEC && (s.name == "" || s.kind == settingUnknown) {
			t.Errorf("attribute %d has no entry", attr)
		}
	}
	var b []byte
	for attr := range len(settings) + 1 {
		v := []byte{1}
		if attr < len(settings) && settings[attr].kind == settingNumber {
			v = []byte{1, 0, 0, 0}
		}
		b = appendAttribute(b, attr, v)
	}
	ad, err := mdnetlink.NewAttributeDecoder(b)
	must(t, err)
	var l link
	must(t, l.parsePort(ad))
	must(t, ad.Err())
	want := []string{"backup_nhid=1", "backup_port=1", "neigh_suppress=on",
		"neigh_vlan_suppress=on", "proxy_arp=on", "proxy_arp_wifi=on", "unknown(46)", "vlan_tunnel=on"}
	if !slices.Equal(l.settings, want) {
		t.Errorf("settings are %q, want %q", l.settings, want)
	}
}

// Whatever the bytes are, reading them ends, without a panic.
func TestParseGarbage(t *testing.T) {
	valid := [][]byte{
		linkMessage(1, "br0", linkInfo(kindBridge, "", appendAttribute(nil, nl.IFLA_BR_VLAN_FILTERING, []byte{1}))),
		linkMessage(2, "vnet0", linkInfo(kindTap, kindBridge, appendAttribute(nil, nl.IFLA_BRPORT_STATE, []byte{3}))),
		entryMessage(3, 2, 7, mac(1), 0x40, 0),
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		b := slices.Clone(valid[r.IntN(len(valid))])
		for range 1 + r.IntN(4) {
			b[r.IntN(len(b))] = byte(r.Uint32() >> r.IntN(32))
		}
		b = b[:1+r.IntN(len(b))]
		parseLink(b)
		parseEntry(b, time.Time{})
	}
}
