package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// agentArg tells the process that serves the host from the first process.
const agentArg = "testvm-agent"

// Main is the whole life of a guest's first process, and does not return. In any
// other process it does nothing and returns at once.
func Main() {
	switch {
	case os.Getpid() == 1 && os.Getppid() == 0 && os.Args[0] != agentArg:
		if _, err := os.Stat(ConfigPath); err == nil {
			first()
		}
	case len(os.Args) == 1 && os.Args[0] == agentArg:
		serve()
	}
}

// first gets the guest ready, starts the agent, and collects the dead.
func first() {
	err := prepare()
	if err == nil {
		err = superviseAgent()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "testvm: %v\n", err)
	}
	powerOff()
}

// superviseAgent waits for the agent's end, and for that of all processes whose
// parent has died.
func superviseAgent() error {
	agent := exec.Command("/proc/self/exe")
	agent.Args = []string{agentArg}
	// It looks for commands in its own PATH, and hands all of this on to them.
	agent.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "TMPDIR=/tmp"}
	agent.Stdout, agent.Stderr = os.Stdout, os.Stderr
	if err := agent.Start(); err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("waiting for the agent: %w", err)
		case pid == agent.Process.Pid && status != 0:
			return fmt.Errorf("the agent ended with status %#x", int(status))
		case pid == agent.Process.Pid:
			return nil
		}
	}
}

func powerOff() {
	unix.Sync()
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	// The end of the first process is a panic, which ends the machine too.
	fmt.Fprintf(os.Stderr, "testvm: powering off: %v\n", err)
	os.Exit(1)
}

func prepare() error {
	if err := mount(); err != nil {
		return err
	}
	config, err := readConfig()
	if err != nil {
		return err
	}
	for _, m := range config.Modules {
		if err := load(m); err != nil {
			return err
		}
	}
	// Modules are of no use any more, and this file system is memory.
	if err := os.RemoveAll(ModuleDir); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	return nil
}

func readConfig() (*Config, error) {
	text, err := os.ReadFile(ConfigPath)
	if err != nil {
		return nil, fmt.Errorf("reading the guest's configuration: %w", err)
	}
	c := new(Config)
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("reading the guest's configuration: %w", err)
	}
	return c, nil
}

func load(module string) error {
	f, err := os.Open(filepath.Join(ModuleDir, module+".ko"))
	if err != nil {
		return fmt.Errorf("loading module %s: %w", module, err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("loading module %s: %w", module, err)
	}
	return nil
}

func mount() error {
	mounts := []struct {
		fstype, target, data string
	}{
		{fstype: "proc", target: "/proc"},
		{fstype: "sysfs", target: "/sys"},
		{fstype: "devtmpfs", target: "/dev"},
		{fstype: "devpts", target: "/dev/pts"},
		{fstype: "tmpfs", target: "/dev/shm"},
		{fstype: "tmpfs", target: "/run", data: "mode=0755"},
		{fstype: "tmpfs", target: "/tmp", data: "mode=1777"},
		{fstype: "bpf", target: "/sys/fs/bpf"},
		{fstype: "cgroup2", target: "/sys/fs/cgroup"},
		{fstype: "debugfs", target: "/sys/kernel/debug"},
		{fstype: "tracefs", target: "/sys/kernel/tracing"},
	}
	for _, m := range mounts {
		err := os.MkdirAll(m.target, 0o755)
		if err == nil {
			err = unix.Mount(m.fstype, m.target, m.fstype, 0, m.data)
		}
		if err != nil {
			return fmt.Errorf("mounting %s on %s: %w", m.fstype, m.target, err)
		}
	}
	for name, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, name); err != nil {
			return err
		}
	}
	return syscall.Sethostname([]byte("testvm"))
}
