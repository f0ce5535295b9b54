// Package ways holds the BPF programs that the fast path is measured against: the
// floor, the limit, the bare redirect at the tc hook, and a prologue that spreads
// frames over many stations and ports.
package ways

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// MaxStations is how many pairs of addresses Spray can go through, and MaxPorts
// how many devices the limit can send to.
const (
	MaxStations = 65536
	MaxPorts    = 1024
)

// A Station is the addresses of one frame and the device it must leave by.
type Station struct {
	Dest, Source [6]byte
	Ifindex      int
}

// Options say where frames go. Zero values do for programs that send none.
type Options struct {
	// Egress is the ifindex of the tap that Limit, LimitArray and TCRedirect
	// send to.
	Egress int
	// Ports are the ifindexes that LimitSprayed may send to, besides Egress.
	Ports []int
	// Stations are what Spray goes through, over and over, in this order. Put
	// them in random order to keep the CPU's prefetcher out of the tables of
	// the program under test. Frames to spray need at least 46 bytes.
	Stations []Station
	// Tag is the VLAN tag, TPID << 16 | TCI, that sprayed frames have; 0 for none.
	Tag uint32
}

// Programs are the loaded programs. Live frames run them; only TCRedirect has to be
// attached. Linux 5.18, and 6.6 for tcx.
type Programs struct {
	Floor        *ebpf.Program // XDP_DROP: the price of the generator
	Limit        *ebpf.Program // bpf_redirect_map into Egress by a DEVMAP_HASH
	LimitArray   *ebpf.Program // the same by a DEVMAP
	LimitSprayed *ebpf.Program // the same as Limit for sprayed frames
	Pass         *ebpf.Program // XDP_PASS
	TCRedirect   *ebpf.Program // bpf_redirect to Egress, for tcx ingress
	Spray        *ebpf.Program // writes the next station's addresses, then calls the program under test
	Count        *ebpf.Program // XDP_DROP that counts

	objects programsObjects
}

// Load loads the programs. It needs CAP_BPF and CAP_NET_ADMIN.
func Load(o Options) (*Programs, error) {
	if len(o.Stations) > MaxStations {
		return nil, fmt.Errorf("loading the programs to measure against: %d stations, at most %d are possible", len(o.Stations), MaxStations)
	}
	spec, err := loadPrograms()
	if err != nil {
		return nil, fmt.Errorf("reading the programs to measure against: %w", err)
	}
	for name, value := range map[string]uint32{"egress": uint32(o.Egress), "stations_used": uint32(max(1, len(o.Stations))), "spray_tag": o.Tag} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	p := &Programs{}
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return nil, fmt.Errorf("loading the programs to measure against: %w", err)
	}
	p.Floor, p.Limit, p.LimitArray = p.objects.BenchFloor, p.objects.BenchLimit, p.objects.LimitArray
	p.LimitSprayed, p.Pass, p.TCRedirect = p.objects.LimitSprayed, p.objects.BenchPass, p.objects.TcRedirect
	p.Spray, p.Count = p.objects.Spray, p.objects.BenchCount
	if err := p.fill(o); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// fill writes the devices and stations into the maps.
func (p *Programs) fill(o Options) error {
	ports := o.Ports
	if o.Egress != 0 {
		if err := p.objects.TxArray.Put(uint32(0), uint32(o.Egress)); err != nil {
			return fmt.Errorf("putting device %d into a devmap: %w", o.Egress, err)
		}
		ports = append([]int{o.Egress}, ports...)
	}
	for _, port := range ports {
		if err := p.objects.TxHash.Put(uint32(port), uint32(port)); err != nil {
			return fmt.Errorf("putting device %d into a devmap: %w", port, err)
		}
	}
	for i, s := range o.Stations {
		station := programsStation{Dest: s.Dest, Source: s.Source, Ifindex: uint32(s.Ifindex)}
		if err := p.objects.Stations.Put(uint32(i), station); err != nil {
			return fmt.Errorf("writing station %d: %w", i, err)
		}
	}
	return nil
}

// SetUnderTest makes Spray hand its frames to prog from now on. Like Spray, it must
// be an XDP program that takes frames in several buffers (xdp.frags).
func (p *Programs) SetUnderTest(prog *ebpf.Program) error {
	if err := p.objects.UnderTest.Put(uint32(0), prog); err != nil {
		return fmt.Errorf("putting %s behind the prologue: %w", prog, err)
	}
	return nil
}

// Counted gives how many frames Count has met.
func (p *Programs) Counted() (n uint64, err error) {
	if err := p.objects.Counted.Lookup(uint32(0), &n); err != nil {
		return 0, fmt.Errorf("reading the counter: %w", err)
	}
	return n, nil
}

// Close frees the programs and their maps.
func (p *Programs) Close() error { return p.objects.Close() }
