package hostbpf

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
)

// tagged puts tags in front of a frame's type, the outer first.
func tagged(f []byte, tags ...uint32) []byte {
	out := slices.Clone(f[:12])
	for _, tag := range tags {
		out = binary.BigEndian.AppendUint32(out, tag)
	}
	return append(out, f[12:]...)
}

// makeAware makes the bed's bridge VLAN-aware, and its guest a member of VLANs. The
// bridge has the same addresses in each VLAN.
func (b *verdictBed) makeAware(t *testing.T, tpid uint16, uplink, guest *vswitch.VLANSet) {
	t.Helper()
	for ifindex, set := range map[int]*vswitch.VLANSet{b.uplink: uplink, b.guest: guest} {
		c := b.Ports()[ifindex]
		c.VLANProtocol, c.VLANs = tpid, set
		if err := b.SetPort(c); err != nil {
			t.Fatal(err)
		}
		_, stored := b.ports.vlansOf(b.Datapath.held[ifindex].slot)
		if diff := cmp.Diff(set, stored); diff != "" {
			t.Errorf("VLANs of port %d (-set +stored):\n%s", ifindex, diff)
		}
	}
	for _, v := range []vswitch.VLAN{1, 10, 20, 30, 4094} {
		for m, port := range map[vswitch.MAC]int{macOutside: b.uplink, macGuest: b.guest} {
			if err := b.SetFDB(vswitch.FDBKey{Bridge: bridgeIfindex, VLAN: v, MAC: m}, port, vswitch.OriginLearned); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func vlanSet(pvid vswitch.VLAN, tagged, untagged []vswitch.VLAN) *vswitch.VLANSet {
	set := &vswitch.VLANSet{PVID: pvid}
	for _, v := range tagged {
		set.Put(v, false)
	}
	for _, v := range untagged {
		set.Put(v, true)
	}
	return set
}

// TestVLANs sends frames from the uplink to the guest by XDP, and looks at what
// would come out. The tc hook, whose tags a test run can't set, is testvm/oracle's.
func TestVLANs(t *testing.T) {
	type list = []vswitch.VLAN
	const (
		q, ad = 0x8100, 0x88a8
		pcp   = 5 << 13
		dei   = 1 << 12
	)
	plain := frame(macGuest, macOutside, other, 60)
	for i := range plain[14:] {
		plain[14+i] = byte(i)
	}
	tag := func(tpid, tci uint32) uint32 { return tpid<<16 | tci }
	trunk := vlanSet(1, list{10, 20, 4094}, list{1})
	tests := []struct {
		name          string
		tpid          uint16
		uplink, guest *vswitch.VLANSet
		in, out       []byte
		want          vswitch.Verdict
	}{
		{"not aware, untagged", 0, nil, nil, plain, plain, vswitch.Redirected},
		{"not aware, tagged", 0, nil, nil, tagged(plain, tag(q, 10)), tagged(plain, tag(q, 10)), vswitch.Redirected},
		{"not aware, two tags", 0, nil, nil, tagged(plain, tag(ad, 7), tag(q, 10)), tagged(plain, tag(ad, 7), tag(q, 10)), vswitch.Redirected},
		{"not aware, of a VLAN device", 0, vlanSet(0, list{10}, nil), nil, tagged(plain, tag(q, 10)), nil, vswitch.PassVLAN},
		{"not aware, of no VLAN device", 0, vlanSet(0, list{10}, nil), nil, tagged(plain, tag(q, 11)), tagged(plain, tag(q, 11)), vswitch.Redirected},

		{"PVID to untagged", q, trunk, vlanSet(1, nil, list{1}), plain, plain, vswitch.Redirected},
		{"PVID to tagged", q, trunk, vlanSet(0, list{1}, nil), plain, tagged(plain, tag(q, 1)), vswitch.Redirected},
		{"no PVID", q, vlanSet(0, nil, list{1}), trunk, plain, nil, vswitch.PassVLAN},
		{"PVID blocked", q, vlanSet(1, nil, nil), trunk, plain, nil, vswitch.PassVLAN},
		{"tagged to untagged", q, trunk, vlanSet(10, nil, list{10}), tagged(plain, tag(q, 10)), plain, vswitch.Redirected},
		{"tagged to tagged", q, trunk, trunk, tagged(plain, tag(q, pcp|dei|10)), tagged(plain, tag(q, pcp|dei|10)), vswitch.Redirected},
		{"tagged with the PVID", q, trunk, vlanSet(0, list{1}, nil), tagged(plain, tag(q, 1)), tagged(plain, tag(q, 1)), vswitch.Redirected},
		{"priority tag to untagged", q, trunk, trunk, tagged(plain, tag(q, pcp)), plain, vswitch.Redirected},
		{"priority tag to tagged", q, trunk, vlanSet(0, list{1}, nil), tagged(plain, tag(q, pcp|dei)), tagged(plain, tag(q, pcp|dei|1)), vswitch.Redirected},
		{"inner tag stays", q, trunk, vlanSet(10, nil, list{10}), tagged(plain, tag(q, 10), tag(q, 30)), tagged(plain, tag(q, 30)), vswitch.Redirected},
		{"highest", q, trunk, trunk, tagged(plain, tag(q, 4094)), tagged(plain, tag(q, 4094)), vswitch.Redirected},
		{"reserved", q, trunk, trunk, tagged(plain, tag(q, 4095)), nil, vswitch.PassVLAN},
		{"not of the uplink", q, trunk, vlanSet(0, list{30}, nil), tagged(plain, tag(q, 30)), nil, vswitch.PassVLAN},
		{"not of the guest", q, trunk, vlanSet(0, list{10}, nil), tagged(plain, tag(q, 20)), nil, vswitch.PassVLAN},
		{"no VLANs at all", q, nil, nil, plain, nil, vswitch.PassVLAN},
		{"service tag, bridge with tags", q, trunk, trunk, tagged(plain, tag(ad, 10)), nil, vswitch.PassTagged},
		{"tag, bridge with service tags", ad, trunk, trunk, tagged(plain, tag(q, 10)), nil, vswitch.PassTagged},
		{"service tag, bridge with service tags", ad, trunk, trunk, tagged(plain, tag(ad, 10), tag(q, 10)), tagged(plain, tag(ad, 10), tag(q, 10)), vswitch.Redirected},
		{"PVID, bridge with service tags", ad, trunk, vlanSet(0, list{1}, nil), plain, tagged(plain, tag(ad, 1)), vswitch.Redirected},

		{"longest untagged", q, trunk, vlanSet(0, list{1}, nil), frame(macGuest, macOutside, other, 1514), nil, vswitch.Redirected},
		{"too long", q, trunk, vlanSet(0, list{1}, nil), frame(macGuest, macOutside, other, 1515), nil, vswitch.PassTooLong},
		{"longest tagged", q, trunk, trunk, tagged(frame(macGuest, macOutside, other, 1514), tag(q, 10)), nil, vswitch.Redirected},
		{"too long tagged", q, trunk, trunk, tagged(frame(macGuest, macOutside, other, 1515), tag(q, 10)), nil, vswitch.PassTooLong},
	}
	needXDPContext(t)
	b := newVerdictBed(t)
	where := counter{b.uplink, vswitch.HookXDP}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b.makeAware(t, tt.tpid, tt.uplink, tt.guest)
			out := make([]byte, 2048)
			opts := &ebpf.RunOptions{
				Data: tt.in, DataOut: out,
				Context: xdpContext{DataEnd: uint32(len(tt.in)), IngressIfindex: uint32(b.uplink)},
			}
			before := b.counted(t)[where]
			if _, err := b.programs.UplinkRxXdp.Run(opts); err != nil {
				t.Fatal(err)
			}
			if n := b.counted(t)[where][tt.want] - before[tt.want]; n != 1 {
				t.Errorf("%d more %s, want 1", n, tt.want)
			}
			want := tt.out
			if tt.want != vswitch.Redirected {
				want = tt.in // as it came
			}
			if want != nil {
				if diff := cmp.Diff(want, opts.DataOut); diff != "" {
					t.Errorf("frame (-want +got):\n%s", diff)
				}
			}
		})
	}
}
