package libvirt

import (
	"reflect"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"":                               {},
		"/run/other":                     {"", []string{"/run/other"}},
		"qemu:///system":                 {"qemu:///system", nil},
		"test:///default":                {"test:///default", nil},
		"qemu+unix:///system":            {"qemu:///system", nil},
		"qemu:///system?socket=/s":       {"qemu:///system", []string{"/s"}},
		"test+unix:///default?socket=/s": {"test:///default", []string{"/s"}},
	} {
		if got, err := ParseTarget(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %+v (%v), want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"libvirt-sock", "qemu://far/system", "qemu+ssh://far/system", "qemu+tcp:///system", "qemu+tls:///system", ":", "qemu:"} {
		if got, err := ParseTarget(text); err == nil {
			t.Errorf("%q is %+v, want an error", text, got)
		}
	}
}
