package hostbpf

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// DefaultPinDir is where a host's datapath is pinned.
const DefaultPinDir = "/sys/fs/bpf/tapswitch"

// layoutVersion changes whenever the layout or the meaning of a pinned map does.
const layoutVersion = "v3"

// A pinDir is the datapath's place in a BPF file system:
//
//	ROOT/v3/maps/NAME            each map
//	ROOT/v3/links/HOOK-IFINDEX   each attachment to a device
//	ROOT/v3/links/TRACEPOINT     each loss counter
//	ROOT/v3/rxvlan/IFINDEX       what was switched off of a device, as a symbolic link
//
// ROOT stays locked while it is open, so that there is one writer.
type pinDir struct {
	root string
	lock *os.File
}

// openPins makes root if it is not there, and locks it.
func openPins(root string) (*pinDir, error) {
	if err := checkBPFFS(filepath.Dir(root)); err != nil {
		return nil, err
	}
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making the pin directory: %w", err)
	}
	lock, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("opening the pin directory: %w", err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = &LockedError{Dir: root, PID: lockHolder(lock)}
	} else if err != nil {
		err = fmt.Errorf("locking %s: %w", root, err)
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &pinDir{root: root, lock: lock}, nil
}

// A LockedError says that another process drives the datapath.
type LockedError struct {
	Dir string
	PID int // 0 if it can't be told
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s drives the datapath at %s already: stop it first, or name another directory with -pins", who, e.Dir)
}

// lockHolder looks for the process that holds a lock on f; 0 if none is found.
func lockHolder(f *os.File) (pid int) {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0
	}
	defer locks.Close()
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 00:1d:22 0 EOF
		if f := strings.Fields(lines.Text()); len(f) >= 6 && f[1] == "FLOCK" && f[5] == want {
			pid, _ = strconv.Atoi(f[4]) // 0 if it is not to be read
		}
	}
	return pid
}

// ErrNoBPFFS says that there is no BPF file system where the pins should be.
var ErrNoBPFFS = errors.New("no BPF file system")

func checkBPFFS(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%w at %s: mount one with 'mount -t bpf bpf %s', or start tapswitchd with -mount-bpffs", ErrNoBPFFS, dir, dir)
	}
	return nil
}

// MountBPFFS mounts a BPF file system where pinDir should lie, unless there is one.
func MountBPFFS(pinDir string) error {
	dir := filepath.Dir(pinDir)
	if err := checkBPFFS(dir); !errors.Is(err, ErrNoBPFFS) {
		return err
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mounting a BPF file system on %s: %w", dir, err)
	}
	return nil
}

func (p *pinDir) dir() string                 { return filepath.Join(p.root, layoutVersion) }
func (p *pinDir) mapPath(name string) string  { return filepath.Join(p.dir(), "maps", name) }
func (p *pinDir) linkPath(name string) string { return filepath.Join(p.dir(), "links", name) }

// exists says whether a datapath is pinned.
func (p *pinDir) exists() bool {
	_, err := os.Stat(p.dir())
	return err == nil
}

// create pins new maps. They appear at once and all together, by one rename, so
// that a process that ends in the midst of it leaves nothing to be adopted.
func (p *pinDir) create(maps map[string]*ebpf.Map) error {
	fresh := filepath.Join(p.root, "new")
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("removing what an interrupted start left: %w", err)
	}
	for _, dir := range []string{fresh, filepath.Join(fresh, "maps"), filepath.Join(fresh, "links")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("making a pin directory: %w", err)
		}
	}
	for name, m := range maps {
		if err := m.Pin(filepath.Join(fresh, "maps", name)); err != nil {
			return fmt.Errorf("pinning map %s: %w", name, err)
		}
	}
	if err := os.Rename(fresh, p.dir()); err != nil {
		return fmt.Errorf("moving the pins into place: %w", err)
	}
	return p.removeOthers()
}

// removeOthers takes away what a datapath of another layout has left, whose frames then
// go by the bridge until this one has its ports. What that had switched off is noted
// here from now on.
func (p *pinDir) removeOthers() error {
	others, err := filepath.Glob(filepath.Join(p.root, "v[0-9]*"))
	if err != nil {
		return err
	}
	for _, dir := range others {
		if dir == p.dir() {
			continue
		}
		// To remove the pins alone detaches the programs only some time later.
		links, err := filepath.Glob(filepath.Join(dir, "links", "*"))
		if err != nil {
			return err
		}
		for _, path := range links {
			if l, err := link.LoadPinnedLink(path, nil); err == nil {
				_ = l.Detach() // no more than a link that is none of a device's refuses it
				l.Close()
			}
		}
		if err := removeClsact(); err != nil {
			return err
		}
		err = os.Rename(filepath.Join(dir, filepath.Base(p.offloadsPath())), p.offloadsPath())
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			return fmt.Errorf("removing the datapath of another version at %s: %w", dir, err)
		}
	}
	return nil
}

// links gives the names of the pinned links.
func (p *pinDir) links() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir(), "links"))
	if err != nil {
		return nil, fmt.Errorf("reading pinned links: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// remove takes away every pin, and the directory if nothing else is in it.
func (p *pinDir) remove() error {
	if err := os.RemoveAll(p.dir()); err != nil {
		return fmt.Errorf("removing pins: %w", err)
	}
	if err := os.Remove(p.root); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("removing the pin directory: %w", err)
	}
	return nil
}

func (p *pinDir) close() error { return p.lock.Close() }
