package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// A Remain is something that the daemon made, and how many of it there are before
// and after its clean stop.
type Remain struct {
	Check
	What   string `json:"what"`
	Before int    `json:"before"`
	After  int    `json:"after"`
}

// stop stops the daemon as systemd does, under a stream, and looks for what it has
// left.
func (s *scenario) stop(ctx context.Context) error {
	s.progress.step("stopping tapswitchd, and looking for what it leaves behind")
	inv, err := takeInventory(s.daemon.Pins)
	if err != nil {
		return err
	}
	before, err := s.count(inv)
	if err != nil {
		return err
	}
	h := Handover{What: "stopped cleanly"}
	err = s.underStream(ctx, &h, func(*lab.Stream) error {
		s.api.Close()
		return s.daemon.Stop()
	})
	if err != nil {
		return err
	}
	// The kernel frees what is no longer used when nobody can still look at it.
	var after remains
	err = poll(ctx, func() (done bool, err error) {
		after, err = s.count(inv)
		return after == remains{}, err
	})
	if err != nil {
		return err
	}
	s.report.Remains = judgeRemains(before, after)
	return nil
}

// An inventory is what the kernel keeps for the daemon, by its ids.
type inventory struct {
	pins     string
	programs []ebpf.ProgramID
	maps     []ebpf.MapID
}

// takeInventory looks through the daemon's pins.
func takeInventory(pins string) (inventory, error) {
	inv := inventory{pins: pins}
	err := eachPin(pins, func(path string) error {
		if filepath.Base(filepath.Dir(path)) == "links" {
			return inv.addLink(path)
		}
		return inv.addMap(path)
	})
	if err != nil {
		return inv, fmt.Errorf("looking through the daemon's pins: %w", err)
	}
	return inv, nil
}

func eachPin(pins string, f func(path string) error) error {
	return filepath.WalkDir(pins, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return f(path)
	})
}

func (inv *inventory) addLink(path string) error {
	l, err := link.LoadPinnedLink(path, &ebpf.LoadPinOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return fmt.Errorf("asking for the program of %s: %w", path, err)
	}
	inv.programs = append(inv.programs, info.Program)
	return nil
}

func (inv *inventory) addMap(path string) error {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return fmt.Errorf("asking for the id of %s: %w", path, err)
	}
	if id, ok := info.ID(); ok {
		inv.maps = append(inv.maps, id)
	}
	return nil
}

// remains counts what there is of an inventory.
type remains struct{ pins, programs, maps, attached int }

func (s *scenario) count(inv inventory) (r remains, err error) {
	err = eachPin(inv.pins, func(string) error { r.pins++; return nil })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("counting pins: %w", err)
	}
	seen := map[ebpf.ProgramID]bool{} // several links have the same
	for _, id := range inv.programs {
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return r, fmt.Errorf("looking for program %d: %w", id, err)
		}
		p.Close()
		seen[id] = true
	}
	r.programs = len(seen)
	for _, id := range inv.maps {
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return r, fmt.Errorf("looking for map %d: %w", id, err)
		}
		m.Close()
		r.maps++
	}
	r.attached, err = s.countAttached()
	return r, err
}

// countAttached counts the programs at the host's devices, by XDP, tcx and tc.
func (s *scenario) countAttached() (n int, err error) {
	for _, port := range append(s.ports(), lab.BridgeDev) {
		l, err := s.Host.Link(port)
		if err != nil {
			return 0, fmt.Errorf("looking for programs at %s: %w", port, err)
		}
		if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
			n++
		}
		filters, err := s.Host.Netlink().FilterList(l, netlink.HANDLE_MIN_INGRESS)
		if err != nil {
			return 0, fmt.Errorf("looking for filters at %s: %w", port, err)
		}
		n += len(filters)
		var tcx *link.QueryResult
		err = s.Host.Do(func() (err error) {
			tcx, err = link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			return err
		})
		if errors.Is(err, ebpf.ErrNotSupported) { // before Linux 6.6
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("looking for tcx programs at %s: %w", port, err)
		}
		n += len(tcx.Programs)
	}
	return n, nil
}

func judgeRemains(before, after remains) []Remain {
	rows := []Remain{
		{What: "pins", Before: before.pins, After: after.pins},
		{What: "programs", Before: before.programs, After: after.programs},
		{What: "maps", Before: before.maps, After: after.maps},
		{What: "attachments", Before: before.attached, After: after.attached},
	}
	for i := range rows {
		r := &rows[i]
		r.Name = "no " + r.What + " left behind"
		r.OK = r.Before > 0 && r.After == 0
		if r.Seen = fmt.Sprintf("%d before the stop, %d after it", r.Before, r.After); r.Before == 0 {
			r.Seen += ": there was nothing to remove, so this shows nothing"
		}
	}
	return rows
}
