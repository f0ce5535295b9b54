package kernel

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// cached gives the kernel that tests boot, and downloads it where it is missing.
func cached(t *testing.T) *Kernel {
	t.Helper()
	k, err := (&Cache{Log: os.Stderr}).Fetch(t.Context(), "6.12")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("SKIPPED: %v", err)
	}
	return k
}

func TestModules(t *testing.T) {
	k := cached(t)
	modules, err := k.Modules("br-netfilter", "veth", "virtio_console", "bridge")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range modules {
		names = append(names, m.Name)
		if !strings.HasPrefix(string(m.Data), "\x7fELF") {
			t.Errorf("module %s is no ELF file", m.Name)
		}
	}
	// virtio_console is built in; what needs another comes behind it.
	sorted := slices.Sorted(slices.Values(names))
	if want := []string{"br_netfilter", "bridge", "llc", "stp", "veth"}; !slices.Equal(sorted, want) {
		t.Errorf("the modules are %q, want %q", sorted, want)
	}
	for _, pair := range [][2]string{{"llc", "stp"}, {"stp", "bridge"}, {"llc", "bridge"}, {"bridge", "br_netfilter"}} {
		if slices.Index(names, pair[0]) > slices.Index(names, pair[1]) {
			t.Errorf("%s comes behind %s, which needs it: %q", pair[0], pair[1], names)
		}
	}
}

func TestUnknownModule(t *testing.T) {
	k := cached(t)
	if _, err := k.Modules("veth", "flux"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "flux") {
		t.Errorf("a module that is not there gave %v", err)
	}
	for name, want := range map[string]bool{"flux": false, "br-netfilter": true, "virtio_console": true} {
		if has, err := k.Has(name); has != want || err != nil {
			t.Errorf("the kernel has %s: %v (%v), want %v", name, has, err, want)
		}
	}
}

func TestImage(t *testing.T) {
	f, err := os.Open(cached(t).Image())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// QEMU looks for the entry in a note of Xen.
	if out, err := exec.Command("grep", "-c", "-a", "Xen", f.Name()).Output(); err != nil {
		t.Errorf("the image has no note of its PVH entry: %v %s", err, out)
	}
}

func TestExtract(t *testing.T) {
	image := make([]byte, 8192)
	if _, err := extract(image); err == nil {
		t.Error("zeros were taken for a bzImage")
	}
	copy(image[headerMagic:], "HdrS")
	copy(image[payloadOffset:], "\xff\xff\xff\x7f\xff\xff\xff\x7f")
	if _, err := extract(image); err == nil || !strings.Contains(err.Error(), "outside") {
		t.Errorf("a payload outside the image gave %v", err)
	}
	image[setupSectors] = 1
	copy(image[payloadOffset:], "\x00\x00\x00\x00\x00\x01\x00\x00")
	copy(image[1024:], "\x01\x02\x03\x04")
	if _, err := extract(image); err == nil || !strings.Contains(err.Error(), "01020304") {
		t.Errorf("an unknown compression gave %v", err)
	}
	if _, err := extract(image[:100]); err == nil {
		t.Error("a few bytes were taken for a bzImage")
	}
}

// A fetch that does not end well leaves the cache as it was, and the next one
// takes away what a killed one has left.
func TestFetchInterrupted(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	dir := t.TempDir()
	killed := filepath.Join(dir, ".fetch-1")
	if err := os.Mkdir(killed, 0o755); err != nil {
		t.Fatal(err)
	}
	// The proxy refuses all connections, so nothing can be had.
	for _, v := range []string{"http_proxy", "https_proxy"} {
		t.Setenv(v, "http://127.0.0.1:9")
	}
	c := &Cache{Dir: dir}
	if _, err := c.Fetch(t.Context(), "6.12"); err == nil {
		t.Error("a kernel was had from nowhere")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" {
			t.Errorf("the cache has %s", e.Name())
		}
	}
	if _, err := c.Find("6.12"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("finding the kernel gave %v", err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("a lock that is held was waited for: %v", err)
	}
	unlock()
	unlock, err = lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
