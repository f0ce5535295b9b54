package guestbpf

import (
	"strings"
	"testing"
)

// modern is a device as QEMU's defaults make it, with enough queues.
func modern() Facts {
	return Facts{
		Device: "eth0", Driver: "virtio_net", Kernel: "6.12.90+deb13-cloud-amd64", MTU: 1500, Queues: 2, MaxQueues: 4, CPUs: 2,
		Virtio: &Virtio{Mergeable: true, AnyLayout: true, ControlsOffloads: true, GuestOffloads: []string{"csum", "tso4", "uso4"}},
	}
}

func TestAdvice(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(*Facts)
		problem bool
		text    string // of the only finding; none if empty
		fix     string
	}{
		{"as it should be", func(*Facts) {}, false, "", ""},
		{"G1 old machine type", func(f *Facts) {
			f.Refusal, f.Virtio.AnyLayout = "virtio_net: XDP expects header/data in single page, any_header_sg required (invalid argument)", false
		}, true, "any_header_sg", "<type machine='q35'>"},
		{"G2 too few queues", func(f *Facts) { f.MaxQueues = 3 }, false, "2 queue pairs are in use, each of 2 CPUs wants one, and there are 3",
			"queues='4'/>; or leave fewer to the stack: ethtool -L eth0 combined 1"},
		{"G2 too few queues before Linux 5.13", func(f *Facts) {
			f.MaxQueues, f.Queues, f.Refusal = 1, 1, "virtio_net: Too few free TX rings available (cannot allocate memory)"
		}, true, "Too few free TX rings", "queues='4'/>"},
		{"G4 program gone after resume", func(f *Facts) { f.Attached = true }, true, "gone from the device", "attach it again"},
		{"offloads that stay on", func(f *Facts) {
			f.Refusal, f.Virtio.ControlsOffloads = "virtio_net: Can't set XDP while host is implementing GRO_HW/CSUM, disable GRO_HW/CSUM first", false
		}, true, "GRO_HW", "<driver><guest csum='off' tso4='off'/></driver>"},
		{"long frames", func(f *Facts) { f.MTU, f.Refusal = 9000, "virtio_net: MTU too large to enable XDP" }, true, "MTU too large", "mtu 1500"},
		{"another driver", func(f *Facts) {
			f.Driver, f.Virtio, f.Refusal = "e1000", nil, "underlying driver does not support XDP in native mode"
		}, true, "does not support", "<model type='virtio'/>"},
		{"ours is attached", func(f *Facts) { f.Attached, f.Program, f.Queues = true, "tapswitch_guest", 4 }, false, "", ""},
		{"somebody else's is attached", func(f *Facts) { f.Program = "theirs" }, false, "theirs", "ip link show eth0"},
		{"tags taken out", func(f *Facts) { f.RxVLAN = true }, false, "VLAN tags", "rxvlan off"},
		{"merged frames", func(f *Facts) { f.LRO = true }, false, "LRO", "lro off"},
		{"fault of old kernels", func(f *Facts) { f.Kernel = "6.1.170-cloud-amd64" }, false, "neighbour", "--routes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := modern()
			tt.change(&f)
			got := advise(f)
			// What versions alone suggest comes last.
			if strings.Contains(tt.name, "before Linux") || tt.text == "" && len(got) > 0 {
				got = got[:min(1, len(got))]
			}
			if tt.text == "" {
				if len(got) > 0 {
					t.Errorf("the advice is %+v, want none", got)
				}
				return
			}
			if len(got) != 1 || got[0].Problem != tt.problem || !strings.Contains(got[0].Text, tt.text) || !strings.Contains(got[0].Fix, tt.fix) {
				t.Errorf("the advice is %+v, want one with %q and %q", got, tt.text, tt.fix)
			}
		})
	}
}

func TestFaultsByVersion(t *testing.T) {
	for text, want := range map[string]bool{
		"5.10.177": true, "5.10.178-x": false, "5.10.0-28-cloud-amd64": true, "5.11.22": true, "5.15.107": true, "5.15.108": false,
		"6.1.25": false, "6.2.11": true, "6.3.0": false, "6.12": false, "7.3.1": false,
	} {
		r, ok := parseRelease(text)
		if got := faults[0].affects(r); !ok || got != want {
			t.Errorf("Linux %s, read as %v: affected %v, want %v", text, r, got, want)
		}
	}
	if _, ok := parseRelease("unknown"); ok {
		t.Error("what is no version was read as one")
	}
}

func TestReadFeatures(t *testing.T) {
	// A device as QEMU 7.2 and Linux 6.12 agree on it.
	v := readFeatures("1110010110101011111101000000110010000000000000000000000000000000")
	if !v.Mergeable || !v.AnyLayout || !v.ControlsOffloads || strings.Join(v.GuestOffloads, " ") != "csum tso4 tso6 ufo" {
		t.Errorf("the features are %+v", v)
	}
	if v := readFeatures(""); v.Mergeable || len(v.GuestOffloads) != 0 {
		t.Errorf("without any the features are %+v", v)
	}
}
