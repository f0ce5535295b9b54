package initramfs

import (
	"debug/elf"
	"fmt"
)

// CheckStatic gives an error if the file is no program that runs without
// libraries: a guest has none.
func CheckStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("reading %s: %w: guests run programs of amd64 alone", path, err)
	}
	defer f.Close()
	if f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("%s is a program for %v: guests run programs of amd64", path, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s needs libraries, which a guest does not have: link it statically (for Go: CGO_ENABLED=0)", path)
		}
	}
	return nil
}
