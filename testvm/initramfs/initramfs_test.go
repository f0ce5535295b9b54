package initramfs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cavaliergopher/cpio"
)

func TestWriter(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "tool"), []byte("tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, err := range []error{
		w.File("/etc/../etc/hosts", 0o644, []byte("odd")),
		w.Dir("/etc"),
		w.Copy("opt", dir),
		w.Copy("/init", filepath.Join(dir, "sub", "tool")),
		w.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	type file struct {
		name string
		mode cpio.FileMode
		data string
	}
	var got []file
	r := cpio.NewReader(&b)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, file{h.Name, h.Mode, string(data)})
	}
	want := []file{
		{"etc", cpio.TypeDir | 0o755, ""},
		{"etc/hosts", cpio.TypeReg | 0o644, "odd"},
		{"opt", cpio.TypeDir | 0o755, ""},
		{"opt/sub", cpio.TypeDir | 0o755, ""},
		{"opt/sub/tool", cpio.TypeReg | 0o755, "tool"},
		{"init", cpio.TypeReg | 0o755, "tool"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("the archive has\n%v, want\n%v", got, want)
	}
}

func TestCopyNothing(t *testing.T) {
	if err := NewWriter(io.Discard).Copy("/x", "/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("copying nothing gave %v", err)
	}
}

func TestCheckStatic(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{script, "/bin/sh", "/nowhere"} {
		if CheckStatic(path) == nil {
			t.Errorf("%s passes for a static program", path)
		}
	}
}
