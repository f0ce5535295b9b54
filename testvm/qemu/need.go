package qemu

import "os"

// Need skips a test, loudly, on a machine without QEMU, and fails it where CI is set:
// there it must be.
func Need(t interface {
	Helper()
	Fatal(args ...any)
	Skip(args ...any)
}) {
	t.Helper()
	switch _, err := findQEMU(); {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatal(err)
	default:
		t.Skip("SKIPPED:", err)
	}
}
