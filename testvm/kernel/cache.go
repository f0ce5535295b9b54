package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A Cache is a directory of kernels. Several processes may use it at once.
type Cache struct {
	// Dir is the directory; DirEnv or the user's cache directory if empty.
	Dir string
	// Log is told what is downloaded; nobody if nil.
	Log io.Writer
}

// DirEnv is the environment variable that names the directory of the cache.
const DirEnv = "TAPSWITCH_KERNELS"

// A Kernel lies in a cache.
type Kernel struct {
	Name    string // of its series, as in Names
	Release string // as uname tells it
	dir     string
}

// The files of a kernel's directory. Modules are files named as the kernel names
// the module, without directories.
const (
	imageFile   = "vmlinux"
	releaseFile = "release"
	builtinFile = "modules.builtin"
	moduleDir   = "modules"
)

// Image is the path of the kernel itself, an ELF file with a PVH entry.
func (k *Kernel) Image() string { return filepath.Join(k.dir, imageFile) }

func (c *Cache) dir() (string, error) {
	if c.Dir != "" {
		return c.Dir, nil
	}
	if dir := os.Getenv(DirEnv); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache of kernels: %w: set %s", err, DirEnv)
	}
	return filepath.Join(dir, "tapswitch", "kernels"), nil
}

// Find gives a kernel that is in the cache. The error is os.ErrNotExist if it is
// not.
func (c *Cache) Find(name string) (*Kernel, error) {
	if _, err := find(name); err != nil {
		return nil, err
	}
	dir, err := c.dir()
	if err != nil {
		return nil, err
	}
	k := &Kernel{Name: name, dir: filepath.Join(dir, name)}
	release, err := os.ReadFile(filepath.Join(k.dir, releaseFile))
	if err != nil {
		return nil, fmt.Errorf("finding kernel %s: %w: get it by 'testvm fetch %s'", name, err, name)
	}
	k.Release = strings.TrimSpace(string(release))
	return k, nil
}

// Fetch gives a kernel, and downloads it if it is not in the cache, which then is
// as it was or has the whole kernel. A kernel in the cache stays as it is: to
// have Debian's present one, remove its directory.
func (c *Cache) Fetch(ctx context.Context, name string) (*Kernel, error) {
	k, err := c.Find(name)
	if !errors.Is(err, os.ErrNotExist) {
		return k, err
	}
	dir, err := c.dir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the cache of kernels: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("waiting for whoever is fetching a kernel: %w", err)
	}
	defer unlock()
	if k, err := c.Find(name); err == nil {
		return k, nil
	}
	if err := c.fetch(ctx, dir, name); err != nil {
		return nil, fmt.Errorf("fetching kernel %s: %w", name, err)
	}
	return c.Find(name)
}

// fetch downloads a kernel. The cache is locked.
func (c *Cache) fetch(ctx context.Context, dir, name string) error {
	const pattern = ".fetch-"
	// Whoever left these is gone, as the lock was free.
	if left, err := filepath.Glob(filepath.Join(dir, pattern+"*")); err == nil {
		for _, l := range left {
			os.RemoveAll(l)
		}
	}
	tmp, err := os.MkdirTemp(dir, pattern)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	s, err := find(name)
	if err != nil {
		return err
	}
	a, err := newApt(ctx, filepath.Join(tmp, "apt"), s.suites)
	if err != nil {
		return err
	}
	packages, err := a.packages(ctx, s.prefix)
	if err != nil {
		return err
	}
	if c.Log != nil {
		fmt.Fprintf(c.Log, "fetching kernel %s: %s\n", name, strings.Join(packages, ", "))
	}
	archives, err := a.download(ctx, packages)
	if err != nil {
		return err
	}
	out := filepath.Join(tmp, name)
	if err := unpack(ctx, archives, out); err != nil {
		return err
	}
	// Neither a machine that crashes now may leave half a kernel.
	unix.Sync()
	return os.Rename(out, filepath.Join(dir, name))
}

// lock takes the lock and gives what releases it.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	select {
	case err = <-locked:
		if err != nil {
			f.Close()
			return nil, err
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		go func() {
			_ = errors.Join(<-locked, f.Close()) // closing releases it
		}()
		return nil, ctx.Err()
	}
}
