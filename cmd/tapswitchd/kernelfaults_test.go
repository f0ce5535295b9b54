package main

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// TestD16KernelsThatLeak: one is warned of the kernels that runts can hurt, and of no
// others.
func TestD16KernelsThatLeak(t *testing.T) {
	const leak, read = "CVE-2026-46321", "CVE-2024-41091"
	for _, k := range []struct{ release, version, fault, fixed string }{
		{release: "6.12.92+deb13-cloud-amd64", fault: leak, fixed: "6.12.93"},
		{release: "6.12.93"},
		{release: "6.18.34-custom", fault: leak, fixed: "6.18.35"},
		{release: "6.18.44-custom"},
		{release: "6.17.8-300.fc43.x86_64", fault: leak, fixed: "7.1"}, // none of its own has the fix
		{release: "6.11.0", fault: leak, fixed: "7.1"},
		{release: "6.10.1", fault: read, fixed: "6.10.2"},
		{release: "6.8.12", fault: read, fixed: "6.11"},
		{release: "5.10.222", fault: read, fixed: "5.10.223"},
		{release: "5.10.223", fault: leak, fixed: "5.10.259"},
		{release: "7.1.0"},
		{release: "8.0.3"},
		{release: "6.1.0-37-amd64", version: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.140-1 (2025-05-22)", fault: leak, fixed: "6.1.176"},
		{release: "6.1.0-51-amd64", version: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-01)"},
		// These may have any fix.
		{release: "6.8.0-60-generic", version: "#63-Ubuntu SMP PREEMPT_DYNAMIC"},
		{release: "5.14.0-503.11.1.el9_5.x86_64"},
		{release: "7.0.0-rc3"},
		{release: "unheard of"},
	} {
		var u unix.Utsname
		copy(u.Release[:], k.release)
		copy(u.Version[:], k.version)
		got := strings.Join(kernelWarnings(u), "\n")
		if k.fault == "" && got != "" || !strings.Contains(got, k.fault) || k.fault != "" && !strings.Contains(got, "fixed in "+k.fixed+")") {
			t.Errorf("Linux %s (%s): got %q, want %q, fixed in %s", k.release, k.version, got, k.fault, k.fixed)
		}
	}
}

// What one is warned of is in the log once, and in the status.
func TestD16WarningIsShown(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	st, err := h.api.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := kernelWarnings(uname())
	if got, want := strings.Join(st.Warnings, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("the status warns of %q, want %q", got, want)
	}
	if n := strings.Count(h.Log(), "your kernel's version"); n != len(want) {
		t.Errorf("the log warns %d times, want %d", n, len(want))
	}
}
