package datapathtest

import (
	"errors"
	"maps"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tapswitch/tapswitch/vswitch"
)

// A Bed is a datapath under test with devices that it can serve.
type Bed struct {
	vswitch.Datapath
	Uplink, Guest, Other int // ifindexes
	// Reopen ends the datapath and adopts what it left; nil if it leaves nothing.
	Reopen func(*testing.T) vswitch.Datapath
}

const (
	bridgeA = 1 << 20
	bridgeB = bridgeA + 1
)

func addr(last byte) vswitch.MAC { return vswitch.MAC{2, 0, 0, 0, 1, last} }

func key(bridge int, last byte) vswitch.FDBKey {
	return vswitch.FDBKey{Bridge: bridge, MAC: addr(last)}
}

func open(ifindex, bridge int, role vswitch.Role) vswitch.PortConfig {
	return vswitch.PortConfig{
		Ifindex: ifindex, Bridge: bridge, Role: role, Attach: true, XDP: role == vswitch.RoleUplink, In: true, Out: true, MaxFrame: 1514,
	}
}

// filtered gives the port a filter with a number of IPv4 addresses.
func filtered(c vswitch.PortConfig, sources int) vswitch.PortConfig {
	c.Filter = vswitch.Filter{In: vswitch.FramesIPv4 | vswitch.FramesOther, Out: vswitch.FramesIPv6, Source: addr(1), Sources: sources}
	for i := range sources {
		c.Filter.IPv4[i] = [4]byte{198, 18, 0, byte(i + 1)}
	}
	return c
}

// Contract checks what every vswitch.Datapath promises. newBed makes an empty
// datapath for each test.
func Contract(t *testing.T, newBed func(*testing.T) Bed) {
	type state struct {
		Ports map[int]vswitch.PortConfig
		FDB   map[vswitch.FDBKey]int
	}
	guest := func(b Bed) vswitch.PortConfig { return open(b.Guest, bridgeA, vswitch.RoleGuest) }
	uplink := func(b Bed) vswitch.PortConfig { return open(b.Uplink, bridgeA, vswitch.RoleUplink) }
	base := func(t *testing.T, b Bed) {
		must(t, b.SetPort(guest(b)))
		must(t, b.SetPort(uplink(b)))
		must(t, b.SetFDB(key(bridgeA, 1), b.Guest, vswitch.OriginLearned))
		must(t, b.SetFDB(key(bridgeA, 2), b.Uplink, vswitch.OriginLearned))
		must(t, b.SetFDB(key(bridgeA, 3), vswitch.Host, vswitch.OriginLearned))
	}
	tests := []struct {
		name string
		do   func(*testing.T, Bed)
		want func(Bed) state
	}{
		{"empty", func(*testing.T, Bed) {}, func(Bed) state { return state{} }},
		{"ports and entries", base, func(b Bed) state {
			return state{
				map[int]vswitch.PortConfig{b.Guest: guest(b), b.Uplink: uplink(b)},
				map[vswitch.FDBKey]int{key(bridgeA, 1): b.Guest, key(bridgeA, 2): b.Uplink, key(bridgeA, 3): vswitch.Host},
			}
		}},
		{"held port stays with its entries", func(t *testing.T, b Bed) {
			base(t, b)
			c := guest(b)
			c.In, c.Out, c.MaxFrame = false, false, 9014
			must(t, b.SetPort(c))
		}, func(b Bed) state {
			c := guest(b)
			c.In, c.Out, c.MaxFrame = false, false, 9014
			return state{
				map[int]vswitch.PortConfig{b.Guest: c, b.Uplink: uplink(b)},
				map[vswitch.FDBKey]int{key(bridgeA, 1): b.Guest, key(bridgeA, 2): b.Uplink, key(bridgeA, 3): vswitch.Host},
			}
		}},
		{"filter", func(t *testing.T, b Bed) {
			for _, sources := range []int{8, 1, 0, 2} {
				must(t, b.SetPort(filtered(guest(b), sources)))
			}
		}, func(b Bed) state {
			return state{Ports: map[int]vswitch.PortConfig{b.Guest: filtered(guest(b), 2)}}
		}},
		{"filter is taken off", func(t *testing.T, b Bed) {
			must(t, b.SetPort(filtered(guest(b), 8)))
			must(t, b.SetPort(guest(b)))
		}, func(b Bed) state {
			return state{Ports: map[int]vswitch.PortConfig{b.Guest: guest(b)}}
		}},
		{"detached port", func(t *testing.T, b Bed) {
			c := guest(b)
			must(t, b.SetPort(c))
			c.Attach, c.In = false, false
			must(t, b.SetPort(c))
		}, func(b Bed) state {
			c := guest(b)
			c.Attach, c.In = false, false
			return state{Ports: map[int]vswitch.PortConfig{b.Guest: c}}
		}},
		{"entry moves", func(t *testing.T, b Bed) {
			base(t, b)
			must(t, b.SetFDB(key(bridgeA, 1), b.Uplink, vswitch.OriginLearned))
			must(t, b.SetFDB(key(bridgeA, 3), b.Guest, vswitch.OriginLearned))
			must(t, b.DeleteFDB(key(bridgeA, 2)))
			must(t, b.DeleteFDB(key(bridgeA, 2)))
		}, func(b Bed) state {
			return state{
				map[int]vswitch.PortConfig{b.Guest: guest(b), b.Uplink: uplink(b)},
				map[vswitch.FDBKey]int{key(bridgeA, 1): b.Uplink, key(bridgeA, 3): b.Guest},
			}
		}},
		{"deleted port takes its entries along", func(t *testing.T, b Bed) {
			base(t, b)
			must(t, b.DeletePort(b.Guest))
			must(t, b.DeletePort(b.Guest))
		}, func(b Bed) state {
			return state{
				map[int]vswitch.PortConfig{b.Uplink: uplink(b)},
				map[vswitch.FDBKey]int{key(bridgeA, 2): b.Uplink, key(bridgeA, 3): vswitch.Host},
			}
		}},
		{"last port takes the bridge along", func(t *testing.T, b Bed) {
			base(t, b)
			must(t, b.DeletePort(b.Guest))
			must(t, b.DeletePort(b.Uplink))
		}, func(Bed) state { return state{} }},
		{"port moves to another bridge", func(t *testing.T, b Bed) {
			base(t, b)
			c := guest(b)
			c.Bridge = bridgeB
			must(t, b.SetPort(c))
			must(t, b.SetFDB(key(bridgeB, 1), b.Guest, vswitch.OriginLearned))
		}, func(b Bed) state {
			c := guest(b)
			c.Bridge = bridgeB
			return state{
				map[int]vswitch.PortConfig{b.Guest: c, b.Uplink: uplink(b)},
				map[vswitch.FDBKey]int{key(bridgeB, 1): b.Guest, key(bridgeA, 2): b.Uplink, key(bridgeA, 3): vswitch.Host},
			}
		}},
		{"same address on two bridges", func(t *testing.T, b Bed) {
			base(t, b)
			must(t, b.SetPort(open(b.Other, bridgeB, vswitch.RoleGuest)))
			must(t, b.SetFDB(key(bridgeB, 1), b.Other, vswitch.OriginLearned))
			must(t, b.DeleteFDB(key(bridgeA, 1)))
		}, func(b Bed) state {
			return state{
				map[int]vswitch.PortConfig{b.Guest: guest(b), b.Uplink: uplink(b), b.Other: open(b.Other, bridgeB, vswitch.RoleGuest)},
				map[vswitch.FDBKey]int{key(bridgeB, 1): b.Other, key(bridgeA, 2): b.Uplink, key(bridgeA, 3): vswitch.Host},
			}
		}},
		{"entry without its port is refused", func(t *testing.T, b Bed) {
			base(t, b)
			for _, err := range []error{
				b.SetFDB(key(bridgeA, 9), b.Other, vswitch.OriginLearned),      // not held
				b.SetFDB(key(bridgeB, 9), b.Guest, vswitch.OriginLearned),      // on another bridge
				b.SetFDB(key(bridgeB, 9), vswitch.Host, vswitch.OriginLearned), // bridge without ports
			} {
				if !errors.Is(err, os.ErrNotExist) {
					t.Errorf("got error %v, want one that is os.ErrNotExist", err)
				}
			}
		}, func(b Bed) state {
			return state{
				map[int]vswitch.PortConfig{b.Guest: guest(b), b.Uplink: uplink(b)},
				map[vswitch.FDBKey]int{key(bridgeA, 1): b.Guest, key(bridgeA, 2): b.Uplink, key(bridgeA, 3): vswitch.Host},
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			tt.do(t, b)
			want := tt.want(b)
			check := func(when string, dp vswitch.Datapath) {
				got := state{dp.Ports(), maps.Collect(dp.FDB())}
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", when, diff)
				}
			}
			check("datapath holds", b.Datapath)
			if b.Reopen != nil {
				check("adopted datapath holds", b.Reopen(t))
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
