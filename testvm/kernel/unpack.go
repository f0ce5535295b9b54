package kernel

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// unpack makes a kernel's directory out of its packages.
func unpack(ctx context.Context, archives []string, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, moduleDir), 0o755); err != nil {
		return err
	}
	for _, a := range archives {
		if err := unpackOne(ctx, a, dir); err != nil {
			return fmt.Errorf("unpacking %s: %w", filepath.Base(a), err)
		}
	}
	for _, f := range []string{imageFile, releaseFile, builtinFile} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			return fmt.Errorf("unpacking: the packages have no %s", f)
		}
	}
	return nil
}

func unpackOne(ctx context.Context, archive, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", archive)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := unpackTar(tar.NewReader(stdout), dir); err != nil {
		cancel()
		return errors.Join(err, cmd.Wait())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("running dpkg-deb: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// unpackTar keeps the kernel and its modules, wherever a package has them.
func unpackTar(t *tar.Reader, dir string) error {
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		base := path.Base(h.Name)
		switch name, suffix, _ := strings.Cut(base, ".ko"); {
		case base == "vmlinuz", strings.HasPrefix(base, "vmlinuz-"):
			err = unpackImage(t, dir)
		case base == builtinFile:
			release := path.Base(path.Dir(h.Name))
			if err = os.WriteFile(filepath.Join(dir, releaseFile), []byte(release+"\n"), 0o644); err == nil {
				err = write(filepath.Join(dir, builtinFile), t)
			}
		case suffix == ".xz", strings.HasSuffix(base, ".ko"):
			err = write(filepath.Join(dir, moduleDir, moduleName(name)+".ko"+suffix), t)
		}
		if err != nil {
			return fmt.Errorf("unpacking %s: %w", h.Name, err)
		}
	}
}

func unpackImage(r io.Reader, dir string) error {
	image, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	elf, err := extract(image)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, imageFile), elf, 0o644)
}

func write(path string, r io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
