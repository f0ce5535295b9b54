package hostbpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
)

// lossCounters are the programs at the kernel's XDP tracepoints.
type lossCounters struct{ links []link.Link }

// AttachLossCounters has the frames counted that are lost after their verdict.
// They cost a little at each flush of any XDP redirect on the machine. They stay
// attached by pins. It needs Linux 5.13, with BTF (CONFIG_DEBUG_INFO_BTF).
func (d *Datapath) AttachLossCounters() error {
	if v, err := features.LinuxVersionCode(); err == nil && v < 5<<16|13<<8 {
		return errors.New("attaching the loss counters: this kernel is too old: its tracepoint xdp_redirect_err does not name the map (Linux 5.13)")
	}
	spec, err := loadLosses()
	if err != nil {
		return fmt.Errorf("reading the loss counters: %w", err)
	}
	var programs lossesPrograms
	err = spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		lossesMapControl: d.maps.Control, lossesMapFlushes: d.maps.Flushes, lossesMapLosses: d.maps.Losses,
		lossesMapPortIndex: d.maps.PortIndex, lossesMapPorts: d.maps.Ports,
	}})
	if err != nil {
		return fmt.Errorf("loading the loss counters: %w", whole(err))
	}
	defer programs.Close()
	// A tracing link can't be given another program: what a process before has
	// attached is replaced, with a gap of microseconds.
	if err := d.DetachLossCounters(); err != nil {
		return err
	}
	for name, p := range map[string]*ebpf.Program{
		lossesProgDevmapXmit: programs.DevmapXmit, lossesProgRedirectErr: programs.RedirectErr,
	} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return fmt.Errorf("attaching loss counter %s: %w", name, err)
		}
		d.links = append(d.links, l)
		if err := l.Pin(d.pins.linkPath(name)); err != nil {
			return fmt.Errorf("pinning loss counter %s: %w", name, err)
		}
	}
	return nil
}

// DetachLossCounters undoes AttachLossCounters.
func (d *Datapath) DetachLossCounters() (err error) {
	d.lossCounters.close()
	for _, name := range []string{lossesProgDevmapXmit, lossesProgRedirectErr} {
		if e := os.Remove(d.pins.linkPath(name)); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("removing loss counter %s: %w", name, e))
		}
	}
	return err
}

func (c *lossCounters) close() {
	for _, l := range c.links {
		l.Close()
	}
	c.links = nil
}
