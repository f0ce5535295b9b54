package guestbpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// A Diagnosis says whether native XDP works on a device, and what to do about it.
type Diagnosis struct {
	Facts
	Findings []Finding `json:"findings"`
}

// Facts are what a device is like.
type Facts struct {
	Device string `json:"device"`
	Driver string `json:"driver"`
	Kernel string `json:"kernel"`
	MTU    int    `json:"mtu"`
	// Queues are pairs in use, of at most MaxQueues. Native XDP wants one more for each
	// of the CPUs that the kernel counts with. 0: the driver does not tell.
	Queues    int `json:"queues"`
	MaxQueues int `json:"max_queues"`
	CPUs      int `json:"cpus"`
	// Buffers of a queue, of at most so many.
	RxRing    int  `json:"rx_ring"`
	MaxRxRing int  `json:"max_rx_ring"`
	TxRing    int  `json:"tx_ring"`
	MaxTxRing int  `json:"max_tx_ring"`
	LRO       bool `json:"lro"`
	RxVLAN    bool `json:"rx_vlan"` // VLAN tags are taken out before XDP
	// Virtio is what host and driver have agreed on; nil if it is no virtio_net.
	Virtio *Virtio `json:"virtio,omitempty"`
	// Program is the name of the XDP program that is on the device, if one is.
	Program string `json:"program,omitempty"`
	// Attached says that something of this package is meant to be on the device.
	Attached bool `json:"attached"`
	// Refusal is why the driver takes no program, in its own words; empty if it does, or
	// if it was not asked because it has one.
	Refusal string `json:"refusal,omitempty"`
}

// Virtio is what matters of the features of a virtio_net.
type Virtio struct {
	Mergeable        bool     `json:"mergeable"`          // a frame may come in several buffers
	AnyLayout        bool     `json:"any_layout"`         // the header may share a buffer with the frame
	ControlsOffloads bool     `json:"ctrl_guest_offload"` // the driver may switch the following off
	GuestOffloads    []string `json:"guest_offloads"`     // what the host may leave undone in frames
}

// Diagnose looks at a device. Unless a program is on it already, one is attached for a
// moment to see whether that works, and may hold frames up for as long.
func (g Guest) Diagnose(dev string) (Diagnosis, error) {
	d, err := deviceByName(dev)
	if err != nil {
		return Diagnosis{}, err
	}
	f := Facts{Device: d.name, MTU: d.mtu}
	if f.Kernel, err = kernelRelease(); err != nil {
		return Diagnosis{}, err
	}
	if f.CPUs, err = ebpf.PossibleCPU(); err != nil {
		return Diagnosis{}, fmt.Errorf("counting CPUs: %w", err)
	}
	if err := f.askDriver(); err != nil {
		return Diagnosis{}, err
	}
	if f.Attached, err = g.means(d); err != nil {
		return Diagnosis{}, err
	}
	if d.xdp != 0 {
		f.Program = programName(d.xdp)
	} else if err := f.try(d); err != nil {
		return Diagnosis{}, err
	}
	return Diagnosis{f, advise(f)}, nil
}

func (f *Facts) askDriver() (err error) {
	if f.Driver, err = driverName(f.Device); err != nil {
		return err
	}
	flags, err := offloadFlags(f.Device)
	if err != nil {
		return err
	}
	f.LRO, f.RxVLAN = flags&flagLRO != 0, flags&flagRxVLAN != 0
	queues, maxQueues := channels(f.Device)
	f.Queues, f.MaxQueues = int(queues), int(maxQueues)
	rx, rxMax, tx, txMax := rings(f.Device)
	f.RxRing, f.MaxRxRing, f.TxRing, f.MaxTxRing = int(rx), int(rxMax), int(tx), int(txMax)
	if f.Driver != "virtio_net" {
		return nil
	}
	bits, err := os.ReadFile(filepath.Join("/sys/class/net", f.Device, "device/features"))
	if err != nil {
		return fmt.Errorf("reading what %s and the host have agreed on: %w", f.Device, err)
	}
	f.Virtio = readFeatures(strings.TrimSpace(string(bits)))
	return nil
}

// The features of virtio_net by their bits.
const (
	virtioControlsOffloads = 2
	virtioMergeable        = 15
	virtioAnyLayout        = 27
	virtioVersion1         = 32
)

var virtioOffloads = []struct {
	bit  int
	name string
}{{1, "csum"}, {7, "tso4"}, {8, "tso6"}, {9, "ecn"}, {10, "ufo"}, {54, "uso4"}, {55, "uso6"}}

// readFeatures reads features as sysfs writes them, a digit for each from bit 0 on.
func readFeatures(bits string) *Virtio {
	has := func(bit int) bool { return bit < len(bits) && bits[bit] == '1' }
	v := &Virtio{
		Mergeable: has(virtioMergeable), AnyLayout: has(virtioAnyLayout) || has(virtioVersion1),
		ControlsOffloads: has(virtioControlsOffloads), GuestOffloads: []string{},
	}
	for _, o := range virtioOffloads {
		if has(o.bit) {
			v.GuestOffloads = append(v.GuestOffloads, o.name)
		}
	}
	return v
}

// means says whether something of this package should be on a device.
func (g Guest) means(d *device) (bool, error) {
	found, err := pinned(g.pins())
	return slices.Contains(found, d.ifindex), err
}

// try attaches a program that passes all frames, and takes it off.
func (f *Facts) try(d *device) error {
	spec, err := readSpec()
	if err != nil {
		return err
	}
	counts, err := ebpf.NewMap(spec.Maps[guestMapCounts])
	if err != nil {
		return fmt.Errorf("making the counters: %w", whole(err))
	}
	defer counts.Close()
	c, err := loadPlain(counts, Pass, ebpf.AttachNone)
	if err != nil {
		return err
	}
	defer c.Close()
	err = d.refusal(c.Programs[string(Pass)].FD())
	if refused := (*extackError)(nil); errors.As(err, &refused) {
		f.Refusal = refused.Error()
		return nil
	}
	return err
}

func programName(id uint32) string {
	if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
		defer p.Close()
		if info, err := p.Info(); err == nil && info.Name != "" {
			return info.Name
		}
	}
	return fmt.Sprint("program ", id)
}

// Devices gives the names of the devices that have a driver of their own.
func Devices() ([]string, error) {
	found, err := filepath.Glob("/sys/class/net/*/device")
	if err != nil {
		return nil, fmt.Errorf("listing devices: %w", err)
	}
	names := []string{}
	for _, path := range found {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	return names, nil
}
