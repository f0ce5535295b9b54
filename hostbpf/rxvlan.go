package hostbpf

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/safchain/ethtool"
)

// Devices names devices. The zero value is none.
type Devices struct {
	All   bool
	Names []string
}

// Allows says whether a device is one of them.
func (d Devices) Allows(name string) bool { return d.All || slices.Contains(d.Names, name) }

// ShowTags allows Holds to switch off what takes VLAN tags out of frames before XDP
// sees them, on devices that carry uplinks' frames. Close puts it back, unless it keeps
// the datapath; then a later process's Close does. Told, if not nil, hears what has
// been switched off, by the kernel's names.
func (d *Datapath) ShowTags(of Devices, told func(device string, offloads []string)) {
	if told == nil {
		told = func(string, []string) {}
	}
	d.untag, d.untagged = of, told
}

// hidingFeatures are the kernel's names of the offloads that do so.
var hidingFeatures = []string{"rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"}

// hiding gives those that are on.
func hiding(features map[string]bool) (on []string) {
	for _, f := range hidingFeatures {
		if features[f] {
			on = append(on, f)
		}
	}
	return on
}

// showTags switches offloads of a device off, and looks whether they are. A driver that
// keeps them is not asked again: each time may take its link down for a moment.
func (d *Datapath) showTags(e *ethtool.Ethtool, ifindex int, name string, on []string) error {
	const kept = "the driver keeps "
	if d.stuck[ifindex] {
		return errors.New(kept + strings.Join(on, " and "))
	}
	d.stuck[ifindex] = true
	// Noted before it is done: what was not done is put back with no effect.
	if err := d.pins.noteOffloads(ifindex, on); err != nil {
		return err
	}
	if err := e.Change(name, switched(on, false)); err != nil {
		return fmt.Errorf("switching %s off: %w", strings.Join(on, " and "), err)
	}
	features, err := e.Features(name)
	if err != nil {
		return fmt.Errorf("reading the offloads: %w", err)
	}
	if still := hiding(features); len(still) > 0 {
		return errors.New(kept + strings.Join(still, " and "))
	}
	delete(d.stuck, ifindex)
	d.untagged(name, on)
	return nil
}

func switched(features []string, on bool) map[string]bool {
	change := map[string]bool{}
	for _, f := range features {
		change[f] = on
	}
	return change
}

// hideTagsAgain puts back what showTags has switched off. Devices that are gone took it
// along.
func (d *Datapath) hideTagsAgain() error {
	noted, err := d.pins.notedOffloads()
	if err != nil || len(noted) == 0 {
		return err
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("switching offloads on again: %w", err)
	}
	defer e.Close()
	for _, ifindex := range slices.Sorted(maps.Keys(noted)) {
		name := deviceName(ifindex)
		if e := e.Change(name, switched(noted[ifindex], true)); e != nil && deviceThere(ifindex) {
			err = errors.Join(err, fmt.Errorf("switching %s of %s on again: %w", strings.Join(noted[ifindex], " and "), name, e))
		}
	}
	return err
}

func (p *pinDir) offloadsPath() string { return filepath.Join(p.dir(), "rxvlan") }

// noteOffloads adds to what has been switched off of a device. A BPF file system has no
// files, but symbolic links, which lead nowhere here.
func (p *pinDir) noteOffloads(ifindex int, features []string) error {
	if err := os.Mkdir(p.offloadsPath(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("noting what is switched off: %w", err)
	}
	path := filepath.Join(p.offloadsPath(), strconv.Itoa(ifindex))
	if old, err := os.Readlink(path); err == nil {
		features = append(strings.Split(old, ","), features...)
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("noting what is switched off: %w", err)
		}
	}
	slices.Sort(features)
	if err := os.Symlink(strings.Join(slices.Compact(features), ","), path); err != nil {
		return fmt.Errorf("noting what is switched off: %w", err)
	}
	return nil
}

// notedOffloads gives what has been switched off, by ifindex.
func (p *pinDir) notedOffloads() (map[int][]string, error) {
	entries, err := os.ReadDir(p.offloadsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	noted := map[int][]string{}
	for _, entry := range entries {
		ifindex, e := strconv.Atoi(entry.Name())
		features, linkErr := os.Readlink(filepath.Join(p.offloadsPath(), entry.Name()))
		if e = errors.Join(e, linkErr); e != nil {
			err = errors.Join(err, e)
			continue
		}
		noted[ifindex] = strings.Split(features, ",")
	}
	if err != nil {
		return noted, fmt.Errorf("reading what was switched off: %w", err)
	}
	return noted, nil
}
