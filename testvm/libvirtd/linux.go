package libvirtd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tapswitch/tapswitch/testvm/initramfs"
	"github.com/tapswitch/tapswitch/testvm/kernel"
)

// A Linux is what a guest boots to have an operating system: one that takes devices in
// and lets go of them, and answers datagrams.
type Linux struct {
	Kernel, Initramfs string // paths
}

// Console gives the path of what a guest's kernel says.
func (l *Linux) Console(guest string) string {
	return filepath.Join(filepath.Dir(l.Initramfs), guest+".console")
}

// GuestPort is the UDP port at which a Linux guest answers what it is sent. A datagram
// that says "mac ADDRESS" makes it take another Ethernet address first, one that says
// "from ADDRESS" is answered from that IP address, and one that says "reboot" makes it
// reboot at once.
const GuestPort = 9

// linuxKernel is one of package kernel's.
const linuxKernel = "6.12"

// MakeLinux prepares a Linux in the daemon's directory. It fetches the kernel if it
// is not in the user's cache.
func (d *Daemon) MakeLinux(ctx context.Context) (*Linux, error) {
	k, err := new(kernel.Cache).Fetch(ctx, linuxKernel)
	if err != nil {
		return nil, err
	}
	modules, err := k.Modules("virtio_pci", "virtio_net")
	if err != nil {
		return nil, err
	}
	l := &Linux{Kernel: k.Image(), Initramfs: filepath.Join(d.dir, "initramfs")}
	f, err := os.Create(l.Initramfs)
	if err != nil {
		return nil, fmt.Errorf("making the guests' root file system: %w", err)
	}
	w := initramfs.NewWriter(f)
	for i, m := range modules {
		err = errors.Join(err, w.File(fmt.Sprintf("modules/%02d-%s.ko", i, m.Name), 0o600, m.Data))
	}
	err = errors.Join(err, addInit(ctx, w, d.dir), w.Close(), f.Close())
	if err != nil {
		return nil, fmt.Errorf("making the guests' root file system: %w", err)
	}
	return l, nil
}

// addInit builds the first process of guests, by the go command.
func addInit(ctx context.Context, w *initramfs.Writer, dir string) error {
	path := filepath.Join(dir, "guestinit")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", path,
		"github.com/tapswitch/tapswitch/testvm/libvirtd/guestinit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building guestinit: %w: %s", err, bytes.TrimSpace(out))
	}
	return w.Copy("init", path)
}
