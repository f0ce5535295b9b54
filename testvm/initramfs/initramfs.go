// Package initramfs makes the root file system that a guest boots with.
package initramfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// A Writer writes the archive, file by file. Directories come by themselves.
// Close must be called at the end.
type Writer struct {
	cpio *cpio.Writer
	dirs map[string]bool
}

// NewWriter writes an archive to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{cpio: cpio.NewWriter(w), dirs: map[string]bool{".": true}}
}

// Dir adds a directory, and those above it.
func (w *Writer) Dir(name string) error {
	name = clean(name)
	if w.dirs[name] {
		return nil
	}
	if err := w.Dir(path.Dir(name)); err != nil {
		return err
	}
	w.dirs[name] = true
	if err := w.cpio.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeDir | 0o755, Links: 2}); err != nil {
		return fmt.Errorf("adding directory %s: %w", name, err)
	}
	return nil
}

// File adds a file with the given permissions.
func (w *Writer) File(name string, perm os.FileMode, data []byte) error {
	name = clean(name)
	if err := w.Dir(path.Dir(name)); err != nil {
		return err
	}
	h := &cpio.Header{Name: name, Mode: cpio.TypeReg | cpio.FileMode(perm.Perm()), Links: 1, Size: int64(len(data))}
	err := w.cpio.WriteHeader(h)
	if err == nil {
		_, err = w.cpio.Write(data)
	}
	if err != nil {
		return fmt.Errorf("adding %s: %w", name, err)
	}
	return nil
}

// Copy adds a file of this machine with its permissions, or a directory with all
// the files below it.
func (w *Writer) Copy(name, source string) error {
	return filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("adding %s: %w", name, err)
		}
		relative, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		target := path.Join(name, relative)
		if d.IsDir() {
			return w.Dir(target)
		}
		info, err := os.Stat(p) // of what a link leads to
		if err != nil {
			return fmt.Errorf("adding %s: %w", target, err)
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return fmt.Errorf("adding %s: %w", target, err)
		}
		return w.File(target, info.Mode(), data)
	})
}

// Close ends the archive.
func (w *Writer) Close() error { return w.cpio.Close() }

// clean gives the name as it is in the archive, relative to the root.
func clean(name string) string {
	name = path.Clean("/" + name)
	if name == "/" {
		return "."
	}
	return strings.TrimPrefix(name, "/")
}
