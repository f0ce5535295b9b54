package qemu_test

import (
	"testing"

	"github.com/tapswitch/tapswitch/testvm/qemu"
)

// A verdict is what a test would have come to.
type verdict string

func (*verdict) Helper()        {}
func (v *verdict) Fatal(...any) { *v = "failed" }
func (v *verdict) Skip(...any)  { *v = "skipped" }

func TestNeed(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	for ci, want := range map[string]verdict{"": "skipped", "true": "failed"} {
		t.Setenv("CI", ci)
		var got verdict
		if qemu.Need(&got); got != want {
			t.Errorf("without QEMU and with CI=%q a test is %q, want %q", ci, got, want)
		}
	}
}
