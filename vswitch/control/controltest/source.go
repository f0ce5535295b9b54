// Package controltest has a control.Source to test the API and its users with.
package controltest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A Source gives what its fields hold, or Err if it is set.
type Source struct {
	StatusValue control.Status
	PortsValue  []control.Port
	FDBValue    []control.FDBEntry
	DropsValue  []control.Drop
	// StatsValue gives the counters of the n-th request, from 0 on.
	StatsValue func(n int) []control.Stats
	Err        error
	// Hooks is where hooks go.
	Hooks chan control.Hook

	requests int
}

var _ control.Switch = (*Source)(nil)

// Hook takes a hook.
func (s *Source) Hook(_ context.Context, h control.Hook) error {
	if s.Err == nil {
		s.Hooks <- h
	}
	return s.Err
}

func (s *Source) Status(context.Context) (control.Status, error) { return s.StatusValue, s.Err }
func (s *Source) Ports(context.Context) ([]control.Port, error)  { return s.PortsValue, s.Err }
func (s *Source) Drops(context.Context) ([]control.Drop, error)  { return s.DropsValue, s.Err }

// Pause pauses what it is asked for, from Now on.
func (s *Source) Pause(_ context.Context, name string, d time.Duration) (control.Pause, error) {
	return control.Pause{Name: name, Ifindex: 104, Ports: []string{name}, Until: Now.Add(d)}, s.Err
}

// Resume ends the pause of nic0 and br0; vnet1 is paused by br0, and no other is.
func (s *Source) Resume(_ context.Context, name string) (control.Pause, error) {
	p := control.Pause{Name: name, Ifindex: 104, Ports: []string{name}, Ended: name == "nic0" || name == "br0"}
	if name == "vnet1" {
		p.Still, p.Until = "br0", Now.Add(42*time.Second)
	}
	return p, s.Err
}

func (s *Source) FDB(_ context.Context, f control.FDBFilter) (entries []control.FDBEntry, err error) {
	for _, e := range s.FDBValue {
		if f.Match(e) {
			entries = append(entries, e)
		}
	}
	return entries, s.Err
}

func (s *Source) Stats(context.Context) ([]control.Stats, error) {
	if s.StatsValue == nil {
		return nil, s.Err
	}
	n := s.requests
	s.requests++
	return s.StatsValue(n), s.Err
}

// Now is the time at which Sample was made.
var Now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Sample is a small switch with something of everything: two bridges, one of
// them down; ports fast, half fast and held; entries old, new and of the host;
// drops. The counters grow by as much with each request.
func Sample() *Source {
	seen := func(age float64) *float64 { return &age }
	mac := func(last byte) vswitch.MAC { return vswitch.MAC{0x52, 0x54, 0, 0, 0, last} }
	foreign := vswitch.Hold(vswitch.HoldForeign, "tc program 17 (edge_meter) is on its ingress; remove it, or leave the port to the bridge")
	foreign.Direction = vswitch.In
	return &Source{
		StatusValue: control.Status{
			Version: "1.2.3",
			PID:     4711,
			Started: Now.Add(-26*time.Hour - 3*time.Minute),
			Kernel:  "6.18.0",
			Lease:   2,
			Renewed: Now.Add(-400 * time.Millisecond),
			Bridges: []control.Bridge{
				{Name: "br0", Ifindex: 3, Up: true, Ports: 4, Fast: 2, Held: 2, FDBEntries: 4},
				{Name: "br-lab", Ifindex: 11, Up: false, Ports: 1, Fast: 0, Held: 1},
			},
			Totals:   control.Totals{Redirected: 1234567, Passed: 8901, Lost: 23},
			FDB:      control.FDBUse{Entries: 4, Capacity: 32768},
			Datapath: control.Datapath{Pins: "/sys/fs/bpf/tapswitch/v1", Adopted: true, FramesPerFlush: 12.345, BulkFlows: 3},
			Libvirt: control.Libvirt{Asked: true, Connected: true, Socket: "/run/libvirt/libvirt-sock", Since: Now.Add(-26 * time.Hour), Domains: 3, Guests: 2, Portless: []control.Portless{
				{Domain: "web", UUID: "3e3fce45-4f53-4fa7-bb32-11f34168b82b", Alias: "net1", MAC: mac(9), Type: "direct", Why: "a macvtap sits on its NIC itself, past any bridge"},
			}},
			Warnings: []string{"your kernel's version, 6.18.0, suggests that guests can use up the host's memory: update the kernel"},
		},
		PortsValue: []control.Port{
			{Name: "vnet7", Ifindex: 12, Bridge: "br-lab", BridgeIfindex: 11, Role: vswitch.RoleGuest, Kind: "tun", MAC: mac(7), MTU: 9000, State: control.StateHeld,
				Held: []vswitch.HoldReason{
					vswitch.Hold(vswitch.HoldDown, "bridge br-lab is down"),
					vswitch.Hold(vswitch.HoldDown, "the port is down or has no carrier"),
				}},
			{Name: "nic0", Ifindex: 2, Bridge: "br0", BridgeIfindex: 3, Role: vswitch.RoleUplink, Kind: "device", MAC: mac(2), MTU: 1500, State: control.StateFast, Hook: "xdp native + tcx"},
			{Name: "sensor", Ifindex: 5, Bridge: "br0", BridgeIfindex: 3, Role: vswitch.RoleOther, Kind: "macvtap", MAC: mac(5), MTU: 1500, State: control.StateHeld,
				Held: []vswitch.HoldReason{vswitch.Hold(vswitch.HoldRole, "a macvtap is neither a NIC nor a tap; name it under uplinks in the configuration if it is one")}},
			{Name: "vnet0", Ifindex: 104, Bridge: "br0", BridgeIfindex: 3, Role: vswitch.RoleGuest, Kind: "tun", MAC: mac(0x10), MTU: 1500, State: control.StateFast, Hook: "tcx",
				Guest: &control.Guest{Domain: "web", UUID: "6c1b8c1e-7a0f-4f0e-9d0c-3f1a4d1b2c3d", Alias: "net0", MAC: mac(0x20), Model: "virtio", Queues: 4}},
			{Name: "vnet1", Ifindex: 105, Bridge: "br0", BridgeIfindex: 3, Role: vswitch.RoleGuest, Kind: "tun", MAC: mac(0x11), MTU: 1500, State: control.StateFastOut, Held: []vswitch.HoldReason{foreign},
				Guest: &control.Guest{Domain: "mail", UUID: "0a9d3f52-5b0e-4c57-8a3b-6f0f6a0f9e11", Alias: "net1", MAC: mac(0x21), Model: "e1000e", Queues: 1, Paused: true}},
		},
		FDBValue: []control.FDBEntry{
			{Bridge: "br0", MAC: mac(0x02), Port: control.HostPort, Ifindex: vswitch.Host, Origin: vswitch.OriginLocal, Fast: true, KernelAge: 93780},
			{Bridge: "br0", MAC: mac(0x10), Port: "vnet0", Ifindex: 104, Origin: vswitch.OriginLearned, Fast: true, KernelAge: 41.52, SeenAge: seen(0.25)},
			{Bridge: "br0", MAC: mac(0x11), Port: "vnet1", Ifindex: 105, Origin: vswitch.OriginStatic, Fast: true, KernelAge: 620},
			{Bridge: "br0", MAC: mac(0x99), Port: "nic0", Ifindex: 2, Origin: vswitch.OriginLearned, Fast: false, KernelAge: 3.1},
			{Bridge: "br0", VLAN: 20, MAC: mac(0x99), Port: "nic0", Ifindex: 2, Origin: vswitch.OriginExtern, Fast: true, KernelAge: 299, SeenAge: seen(298.7)},
		},
		DropsValue: []control.Drop{
			control.NewDrop("vnet0", 104, 0, 20),
			control.NewDrop("vnet0", 104, 100, 2),
			control.NewDrop("vnet1", 105, 95, 1),
			control.NewDeviceDrop("vnet1", 105, 7),
			control.NewQdiscDrop("vnet1", 105, 0),
		},
		StatsValue: func(n int) []control.Stats {
			times := uint64(n + 1)
			// Not all verdicts, so that a new one does not change what is expected.
			count := func(redirected, group, learn, unknown uint64) []control.VerdictCount {
				var counts []control.VerdictCount
				for v, frames := range map[vswitch.Verdict]uint64{
					vswitch.Redirected: redirected, vswitch.PassGroup: group, vswitch.PassLearn: learn, vswitch.PassUnknown: unknown,
				} {
					counts = append(counts, control.VerdictCount{Verdict: v, Frames: frames * times, Meaning: v.Meaning()})
				}
				slices.SortFunc(counts, func(a, b control.VerdictCount) int { return cmp.Compare(a.Verdict, b.Verdict) })
				return counts
			}
			return []control.Stats{
				{Port: "nic0", Ifindex: 2, Bridge: "br0", Role: vswitch.RoleUplink, Flushes: 3 * times, FlushedFrames: 12 * times,
					Verdicts: count(1200000, 801, 0, 12)},
				{Port: "vnet0", Ifindex: 104, Bridge: "br0", Role: vswitch.RoleGuest, Flushes: 100 * times, FlushedFrames: 1234 * times,
					Verdicts: count(34567, 0, 3, 0)},
				{Port: "vnet1", Ifindex: 105, Bridge: "br0", Role: vswitch.RoleGuest, Verdicts: count(0, 0, 0, 0)},
				control.NoPort(5 * times),
			}
		},
	}
}
