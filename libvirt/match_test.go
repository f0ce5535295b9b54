package libvirt

import (
	"maps"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
)

// The address of guest n, and of its tap.
func guestMAC(n byte) vswitch.MAC { return vswitch.MAC{0x52, 0x54, 0, 0, 0, n} }

func TestMatch(t *testing.T) {
	const (
		early = iota
		seen
		late
	)
	at := func(when int) time.Time { return time.Unix(int64(when), 0) }
	tap := func(name string, mac vswitch.MAC) Sighting {
		return Sighting{Port: vswitch.Port{Name: name, MAC: mac}, Since: at(seen)}
	}
	nic := func(target string, mac vswitch.MAC) Interface {
		return Interface{Type: "bridge", Alias: "net0", Target: target, MAC: mac}
	}
	made := func(target string, mac vswitch.MAC) Interface {
		n := nic(target, mac)
		n.Type = "ethernet"
		return n
	}
	domain := func(uuid string, when int, nics ...Interface) Reading {
		return Reading{Domain{UUID: uuid, Name: uuid, Interfaces: nics}, at(when)}
	}
	mac1, mac2 := guestMAC(1), guestMAC(2)
	tap1, tap2 := TapMAC(mac1), TapMAC(mac2)
	for _, tt := range []struct {
		name    string
		domains []Reading
		ports   map[int]Sighting
		before  map[int]string // UUIDs; of net0 and mac1
		want    map[int]string
	}{
		{
			name:    "by name and address",
			domains: []Reading{domain("a", late, nic("vnet0", mac1)), domain("b", late, nic("vnet1", mac2))},
			ports:   map[int]Sighting{5: tap("vnet1", tap2), 6: tap("vnet0", tap1)},
			want:    map[int]string{5: "b", 6: "a"},
		}, {
			name:    "asked before the port was there",
			domains: []Reading{domain("a", early, nic("vnet0", mac1))},
			ports:   map[int]Sighting{5: tap("vnet0", tap1)},
		}, {
			name:    "another tap under the name",
			domains: []Reading{domain("a", late, nic("vnet0", mac1))},
			ports:   map[int]Sighting{5: tap("vnet0", tap2)},
		}, {
			name:    "the same address twice",
			domains: []Reading{domain("a", late, nic("vnet0", mac1)), domain("b", late, nic("vnet1", mac1))},
			ports:   map[int]Sighting{5: tap("vnet0", tap1), 6: tap("vnet1", tap1)},
			want:    map[int]string{5: "a", 6: "b"},
		}, {
			name:    "renamed, the same address twice",
			domains: []Reading{domain("a", late, nic("vnet0", mac1)), domain("b", late, nic("vnet1", mac1))},
			ports:   map[int]Sighting{5: tap("x", tap1), 6: tap("y", tap1)},
		}, {
			name:    "renamed before anybody looked",
			domains: []Reading{domain("a", late, nic("vnet0", mac1)), domain("b", late, nic("vnet1", mac2))},
			ports:   map[int]Sighting{5: tap("x", tap1), 6: tap("vnet1", tap2)},
			want:    map[int]string{5: "a", 6: "b"},
		}, {
			name:    "renamed later, and its old name taken",
			domains: []Reading{domain("a", late, nic("vnet0", mac1)), domain("b", late, nic("vnet0", mac1))},
			ports:   map[int]Sighting{5: tap("x", tap1), 6: tap("vnet0", tap1)},
			before:  map[int]string{5: "a"},
			want:    map[int]string{5: "a", 6: "b"},
		}, {
			name:    "known from before, not asked since",
			domains: []Reading{domain("a", early, nic("vnet0", mac1))},
			ports:   map[int]Sighting{5: tap("vnet0", tap1)},
			before:  map[int]string{5: "a"},
			want:    map[int]string{5: "a"},
		}, {
			name:    "a persistent tap whose guest has gone",
			domains: []Reading{domain("b", late, nic("vnet1", mac2))},
			ports:   map[int]Sighting{5: tap("vnet0", tap1)},
			before:  map[int]string{5: "a"},
		}, {
			name:    "a tap made for the guest has its own address",
			domains: []Reading{domain("a", late, made("tap0", mac1))},
			ports:   map[int]Sighting{5: tap("tap0", mac2)},
			want:    map[int]string{5: "a"},
		}, {
			name:    "no tap",
			domains: []Reading{domain("a", late, nic("", mac1))},
			ports:   map[int]Sighting{5: tap("vnet0", tap1)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			domains := map[string]Reading{}
			for _, d := range tt.domains {
				domains[d.UUID] = d
			}
			before := map[int]Guest{}
			for ifindex, uuid := range tt.before {
				before[ifindex] = Guest{UUID: uuid, Interface: nic("", mac1)}
			}
			got := map[int]string{}
			for ifindex, g := range Match(domains, tt.ports, before) {
				got[ifindex] = g.UUID
			}
			if !maps.Equal(got, tt.want) {
				t.Errorf("have %v, want %v", got, tt.want)
			}
		})
	}
}

func TestTapMAC(t *testing.T) {
	for guest, want := range map[vswitch.MAC]vswitch.MAC{
		{0x52, 0x54, 0, 1, 2, 3}: {0xfe, 0x54, 0, 1, 2, 3},
		{0xfe, 0x54, 0, 1, 2, 3}: {0xfa, 0x54, 0, 1, 2, 3},
	} {
		if got := TapMAC(guest); got != want {
			t.Errorf("the tap of %v has %v, want %v", guest, got, want)
		}
	}
}
