package kernel

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/ulikunitz/xz"
)

// A Module is one of a kernel's loadable modules.
type Module struct {
	Name string
	Data []byte // an ELF file
}

// Modules gives the named modules and all that they need, in the order in which
// they can be loaded. Those that are built into the kernel are left out.
func (k *Kernel) Modules(names ...string) ([]Module, error) {
	builtin, err := k.builtin()
	if err != nil {
		return nil, err
	}
	w := walk{kernel: k, seen: builtin}
	for _, name := range names {
		if err := w.visit(moduleName(name)); err != nil {
			return nil, err
		}
	}
	return w.order, nil
}

// Has says whether the kernel has a module, built in or not.
func (k *Kernel) Has(name string) (bool, error) {
	builtin, err := k.builtin()
	if err != nil || builtin[moduleName(name)] {
		return err == nil, err
	}
	_, err = k.find(moduleName(name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

type walk struct {
	kernel *Kernel
	seen   map[string]bool
	order  []Module
}

func (w *walk) visit(name string) error {
	if w.seen[name] {
		return nil
	}
	w.seen[name] = true
	data, err := w.kernel.read(name)
	if err != nil {
		return err
	}
	needs, err := needs(data)
	if err != nil {
		return fmt.Errorf("reading module %s: %w", name, err)
	}
	for _, n := range needs {
		if err := w.visit(moduleName(n)); err != nil {
			return fmt.Errorf("%w (%s needs it)", err, name)
		}
	}
	w.order = append(w.order, Module{name, data})
	return nil
}

// moduleName gives the name under which the kernel lists a module; files and
// people use a dash as well.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

func (k *Kernel) builtin() (map[string]bool, error) {
	list, err := os.ReadFile(filepath.Join(k.dir, builtinFile))
	if err != nil {
		return nil, fmt.Errorf("reading what is built into kernel %s: %w", k.Release, err)
	}
	names := make(map[string]bool)
	for line := range strings.Lines(string(list)) {
		names[moduleName(strings.TrimSuffix(path.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return names, nil
}

// find gives the path of a module's file; the error is os.ErrNotExist if there is
// none.
func (k *Kernel) find(name string) (string, error) {
	file := filepath.Join(k.dir, moduleDir, name+".ko")
	for _, f := range []string{file, file + ".xz"} {
		if _, err := os.Stat(f); err == nil {
			return f, nil
		}
	}
	return "", fmt.Errorf("finding module %s of kernel %s: %w", name, k.Release, os.ErrNotExist)
}

func (k *Kernel) read(name string) ([]byte, error) {
	file, err := k.find(name)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(file)
	if err == nil && strings.HasSuffix(file, ".xz") {
		var r io.Reader
		if r, err = xz.NewReader(bytes.NewReader(data)); err == nil {
			data, err = io.ReadAll(r)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading module %s of kernel %s: %w", name, k.Release, err)
	}
	return data, nil
}

// needs gives the modules whose symbols this one uses.
func needs(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	var names []string
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			names = append(names, strings.Split(list, ",")...)
		}
	}
	return names, nil
}
