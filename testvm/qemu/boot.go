package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/initramfs"
	"github.com/tapswitch/tapswitch/testvm/kernel"
	"github.com/tapswitch/tapswitch/testvm/qemu/guest"
)

// program is QEMU's name.
const program = "qemu-system-x86_64"

// findQEMU gives QEMU's path.
func findQEMU() (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("finding QEMU: %w: run 'make deps', or install qemu-system-x86", err)
	}
	return path, nil
}

// rootFS makes the guest's root file system, which lies in memory and goes when the
// file is closed.
func (m *Machine) rootFS(ctx context.Context, k *kernel.Kernel) (*os.File, error) {
	modules, err := k.Modules(append(slices.Clone(always), m.Modules...)...)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making the guest's root file system: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initramfs")
	w := initramfs.NewWriter(f)
	err = m.fill(ctx, w, modules)
	if err = errors.Join(err, w.Close()); err != nil {
		f.Close()
		return nil, fmt.Errorf("making the guest's root file system: %w", err)
	}
	return f, nil
}

func (m *Machine) fill(ctx context.Context, w *initramfs.Writer, modules []kernel.Module) error {
	config := guest.Config{Env: m.Env}
	for _, module := range modules {
		config.Modules = append(config.Modules, module.Name)
		if err := w.File(filepath.Join(guest.ModuleDir, module.Name+".ko"), 0o600, module.Data); err != nil {
			return err
		}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := w.File(guest.ConfigPath, 0o600, text); err != nil {
		return err
	}
	for _, dir := range []string{"etc", "root", "var"} {
		if err := w.Dir(dir); err != nil {
			return err
		}
	}
	for path, source := range m.Files {
		if err := w.Copy(path, source); err != nil {
			return err
		}
	}
	if m.Init != "" {
		return w.Copy("init", m.Init)
	}
	return addInit(ctx, w)
}

// addInit builds the guest's first process and adds it.
func addInit(ctx context.Context, w *initramfs.Writer) error {
	dir, err := os.MkdirTemp("", "testvm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "init")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", path,
		"github.com/tapswitch/tapswitch/testvm/qemu/guest/init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building the guest's first process: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return w.Copy("init", path)
}
