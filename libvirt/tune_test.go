package libvirt

import (
	"encoding/xml"
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/aymanbagabas/go-udiff"
	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Only the changes change: the difference of a rich definition is what it should be,
// and what was parsed before is parsed after.
func TestTune(t *testing.T) {
	rich := testdata(t, "rich.xml")
	first, second := testMAC(1), testMAC(2)
	for _, tt := range []struct {
		golden string
		tuning Tuning
	}{
		{"tune.diff", Tuning{}},
		{"tune-all.diff", Tuning{Virtio: true, NativeXDP: true}},
		{"tune-one.diff", Tuning{Virtio: true, NativeXDP: true, MAC: &second}},
		{"tune-none.diff", Tuning{Virtio: true, NativeXDP: true, MAC: &vswitch.MAC{0x52, 0x54, 0, 0, 0, 6}}},
	} {
		got, err := tt.tuning.Tune(rich)
		if err != nil {
			t.Errorf("%s: %v", tt.golden, err)
			continue
		}
		diff := udiff.Unified("defined", "tuned", got.Before, got.After) + strings.Join(got.Changes, "\n") + "\n"
		path := "testdata/" + tt.golden
		if *update {
			if err := os.WriteFile(path, []byte(diff), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(string(testdata(t, tt.golden)), diff); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.golden, d)
		}
		if d := cmp.Diff(tokens(t, string(rich)), tokens(t, got.Before)); d != "" {
			t.Errorf("%s: the definition has changed without a change (-was +is):\n%s", tt.golden, d)
		}
		// Once it is tuned there is nothing more to do.
		again, err := tt.tuning.Tune([]byte(got.After))
		if err != nil || len(again.Changes) > 0 || again.Before != got.After {
			t.Errorf("%s: tuned twice: %v, %v", tt.golden, again.Changes, err)
		}
	}
	if _, err := (Tuning{MAC: &vswitch.MAC{2}}).Tune(rich); err == nil || err.Error() != "domain web & proxy has no interface with the address 02:00:00:00:00:00" {
		t.Errorf("an address that is not there: %v", err)
	}
	if _, err := (Tuning{MAC: &first}).Tune(rich[:len(rich)/2]); err == nil {
		t.Error("half a definition is one")
	}
}

// tokens gives what XML says, without how it is written.
func tokens(t *testing.T, text string) (all []xml.Token) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := d.RawToken()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, xml.CopyToken(token))
	}
}

// The changed definition is laid out as the rest of it, compact or not.
func TestTuneLayout(t *testing.T) {
	const (
		open = "<domain><name>d</name><vcpu>2</vcpu><devices>"
		shut = "</devices></domain>"
	)
	for _, tt := range []struct{ name, before, after string }{
		{"a driver that is there", "<interface type='bridge'>\n<model type='virtio'/>\n<driver name='qemu'/>\n</interface>", "<interface type='bridge'>\n<model type='virtio'/>\n<driver queues='4'/>\n</interface>"},
		{"all on a line", "<interface type='bridge'><model type='virtio'/></interface>", "<interface type='bridge'><model type='virtio'/><driver queues='4'/></interface>"},
		{"none", "\n  <interface type='bridge'>\n    <model type='virtio'/>\n  </interface>\n", "\n  <interface type='bridge'>\n    <model type='virtio'/>\n    <driver queues='4'/>\n  </interface>\n"},
	} {
		got, err := Tuning{}.Tune([]byte(open + tt.before + shut))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if d := cmp.Diff(open+tt.after+shut, got.After); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

func FuzzTune(f *testing.F) {
	f.Add(testdata(f, "rich.xml"))
	f.Add([]byte("<domain><name>d</name><devices><interface type='bridge'><model type='rtl8139'/></interface></devices></domain>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		tuning := Tuning{Virtio: true, NativeXDP: true}
		got, err := tuning.Tune(text)
		if err != nil {
			return
		}
		before, err := ParseDomain([]byte(got.Before))
		if err != nil {
			t.Fatal(err)
		}
		after, err := ParseDomain([]byte(got.After))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(before.Interfaces, after.Interfaces, func(a, b Interface) bool { return a.MAC == b.MAC && a.Type == b.Type && a.Bridge == b.Bridge }) {
			t.Errorf("%+v has become %+v", before, after)
		}
	})
}
