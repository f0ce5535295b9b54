package libvirtd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// initName is what the program is called when it runs again as the first process
// of a libvirtd's namespaces.
const initName = "tapswitch-libvirtd-init"

func init() {
	if os.Args[0] != initName {
		return
	}
	if err := runInit(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Where libvirtd looks for its files.
const (
	etcDir = "/etc/libvirt"
	runDir = "/run/libvirt"
)

// The configuration; the host's UUID is to be filled in. There is no other user to tell apart, no cgroup to write to,
// and no daemon beside it.
const (
	libvirtdConf = `auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_group = "root"
host_uuid = "%s"
log_outputs = "3:stderr"
`
	qemuConf = `user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
`
)

// runInit is the first process of the namespaces. It does what it reads from its
// standard input, a word per line, and says "ok" or what is wrong. At the end of
// the input it ends, and the kernel ends all processes with it.
func runInit(dir string) error {
	if err := mountPrivate(dir); err != nil {
		return err
	}
	// Guests migrate between hosts of different names and UUIDs only.
	if err := unix.Sethostname([]byte(filepath.Base(dir))); err != nil {
		return fmt.Errorf("naming the host: %w", err)
	}
	p := &processes{ended: map[int]chan struct{}{}}
	go p.reap()
	var libvirtd *process
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		var err error
		switch order := orders.Text(); order {
		case orderStart:
			libvirtd, err = p.start("/usr/sbin/libvirtd")
		case orderKill:
			libvirtd.Signal(unix.SIGKILL)
			<-libvirtd.ended
		case orderStop:
			libvirtd.Signal(unix.SIGTERM)
			<-libvirtd.ended
		case orderSuspend:
			libvirtd.Signal(unix.SIGSTOP)
		case orderResume:
			libvirtd.Signal(unix.SIGCONT)
		default:
			err = fmt.Errorf("unknown order %q", order)
		}
		answer := answerOK
		if err != nil {
			answer = err.Error()
		}
		fmt.Println(answer)
	}
	return orders.Err()
}

// mountPrivate gives the mount namespace directories of its own for all that
// libvirtd writes, and a /dev without kvm, without which libvirtd caches what QEMU
// can do.
func mountPrivate(dir string) error {
	type mount struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}
	mounts := []mount{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""}, // a new instance shows the node's devices, and no cgroups
	}
	for _, over := range []string{"/etc", "/var"} {
		upper, work := filepath.Join(dir, over, "upper"), filepath.Join(dir, over, "work")
		for _, d := range []string{upper, work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		mounts = append(mounts, mount{"overlay", over, "overlay", 0, "lowerdir=" + over + ",upperdir=" + upper + ",workdir=" + work})
	}
	run := filepath.Join(dir, "run")
	for _, d := range []string{run, runDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	mounts = append(mounts, mount{run, runDir, "", unix.MS_BIND, ""})
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", m.source, m.target, err)
		}
	}
	// Which Debian makes along with a default network.
	if err := os.MkdirAll("/var/lib/libvirt/dnsmasq", 0o755); err != nil {
		return err
	}
	uuid, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"libvirtd.conf": fmt.Sprintf(libvirtdConf, bytes.TrimSpace(uuid)),
		"qemu.conf":     qemuConf,
	} {
		if err := os.MkdirAll(filepath.Join(etcDir, "hooks"), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(etcDir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(etcDir, "qemu")); err != nil { // what the machine itself would start
		return err
	}
	// Debian's libvirtd wants the user of its own QEMUs to be there, used or not.
	for name, line := range map[string]string{
		"/etc/passwd": "libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin\n",
		"/etc/group":  "libvirt-qemu:x:64055:\n",
	} {
		if err := appendLine(name, line); err != nil {
			return err
		}
	}
	return mountDev(dir)
}

func appendLine(name, line string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// mountDev puts a layer over /dev that hides kvm. The machine's own is below, so that
// the node of a macvtap is there as soon as the macvtap is.
func mountDev(dir string) error {
	upper, work, dev := filepath.Join(dir, "dev.upper"), filepath.Join(dir, "dev.work"), filepath.Join(dir, "dev")
	for _, d := range []string{upper, work, dev} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	// A character device 0:0 is how a layer says that a file is not there.
	if err := unix.Mknod(filepath.Join(upper, "kvm"), unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("hiding /dev/kvm: %w", err)
	}
	if err := unix.Mount("overlay", dev, "overlay", 0, "lowerdir=/dev,upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mounting %s: %w", dev, err)
	}
	if err := unix.Mount("/dev/pts", filepath.Join(dev, "pts"), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting /dev/pts: %w", err)
	}
	if err := unix.Mount(dev, "/dev", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving %s to /dev: %w", dev, err)
	}
	return nil
}

// processes are those of the namespaces. Whose parent has ended, as every QEMU's
// has, is the first process's to wait for.
type processes struct {
	mu    sync.Mutex
	ended map[int]chan struct{} // of those that start has started
}

type process struct {
	*os.Process
	ended chan struct{}
}

func (p *processes) start(path string) (*process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := syscall.ForkExec(path, []string{filepath.Base(path), "--pid-file", filepath.Join(runDir, "libvirtd.pid")}, &syscall.ProcAttr{
		Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "NOTIFY_SOCKET=" + filepath.Join(runDir, notifyName)},
		Files: []uintptr{null.Fd(), os.Stderr.Fd(), os.Stderr.Fd()},
	})
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	started, err := os.FindProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", path, err)
	}
	ended := make(chan struct{})
	p.ended[pid] = ended
	return &process{started, ended}, nil
}

func (p *processes) reap() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	for range signals {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid == 0 {
				break
			}
			p.mu.Lock()
			if ended, ok := p.ended[pid]; ok {
				close(ended)
				delete(p.ended, pid)
			}
			p.mu.Unlock()
		}
	}
}
