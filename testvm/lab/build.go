package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// DaemonEnv is the environment variable that names the tapswitchd to test, where
// none can be built: in a virtual machine.
const DaemonEnv = "TAPSWITCH_TEST_DAEMON"

// BuildDaemon gives the path of the tree's tapswitchd, in a directory that every
// user may read, and what removes it.
func BuildDaemon() (path string, remove func(), err error) {
	if path := os.Getenv(DaemonEnv); path != "" {
		return path, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "tapswitchd")
	if err != nil {
		return "", nil, fmt.Errorf("building tapswitchd: %w", err)
	}
	remove = func() { os.RemoveAll(dir) }
	if err := os.Chmod(dir, 0o755); err != nil {
		remove()
		return "", nil, fmt.Errorf("building tapswitchd: %w", err)
	}
	path = filepath.Join(dir, "tapswitchd")
	build := exec.Command("go", "build", "-o", path, "github.com/tapswitch/tapswitch/cmd/tapswitchd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // static, as it is shipped
	if out, err := build.CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("building tapswitchd: %w\n%s", err, out)
	}
	return path, remove, nil
}
