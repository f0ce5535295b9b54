package initramfs

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// AddTool adds one of this machine's programs, by its name in PATH, with the libraries
// that it needs, to files: path in the guest → path here. It asks ldd for them.
func AddTool(files map[string]string, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("finding %s for a guest: %w", name, err)
	}
	out, err := exec.Command("ldd", path).Output()
	// A static program has none, which ldd takes for a failure.
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("finding the libraries of %s: %w", path, err)
	}
	files[path] = path
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			files[word] = word
		}
	}
	return nil
}
