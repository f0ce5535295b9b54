package hostbpf

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// checkCapabilities names the capabilities that the datapath needs and the
// process lacks.
func checkCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("reading this process's capabilities: %w", err)
	}
	has := func(c int) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	var missing []string
	for _, c := range []struct {
		number int
		name   string
	}{
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
		{unix.CAP_BPF, "CAP_BPF"},
		{unix.CAP_PERFMON, "CAP_PERFMON"},
	} {
		// CAP_SYS_ADMIN stands for the two that were split from it in Linux 5.8.
		if !has(c.number) && (c.number == unix.CAP_NET_ADMIN || !has(unix.CAP_SYS_ADMIN)) {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this process lacks %s: run it as root, or give it these capabilities", strings.Join(missing, ", "))
	}
	return nil
}
