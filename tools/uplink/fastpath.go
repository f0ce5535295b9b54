package uplink

import (
	"errors"
	"fmt"
	"time"

	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/tools/bench/ways"
	"github.com/tapswitch/tapswitch/tools/tapsink"
	"github.com/tapswitch/tapswitch/vswitch"
)

const (
	pinDir = "/sys/fs/bpf/tapswitch-bench"

	// lease outlasts any one sample.
	lease = 10 * time.Minute

	// maxFrame is an Ethernet frame at an MTU of 1500, in bytes.
	maxFrame = 1514
)

// A fastPath is the datapath as the daemon loads it, with what the daemon would
// have told it about a host. Its program is not attached to the NIC: the sender
// runs it, and the other ways' frames must not meet it.
type fastPath struct {
	*hostbpf.Datapath
	nic   int
	vlans bool
}

// vlan is the VLAN of all stations where there are VLANs: tagged on the wire, and the
// guests' own.
const vlan vswitch.VLAN = 10

// tag is that of frames on the wire, TPID << 16 | TCI.
const tag = uint32(vlanTPID)<<16 | uint32(vlan)

const vlanTPID = 0x8100

// antiSpoof is a guest's filter as libvirt's clean-traffic makes it: of a frame to the
// guest its kind is asked, as here, of one from it the addresses too.
var antiSpoof = vswitch.Filter{
	In: vswitch.FramesIPv4, Out: vswitch.FramesIPv4, Source: vswitch.MAC{2},
	IPv4: [vswitch.FilterSources][4]byte{{198, 19, 0, 1}}, Sources: 1,
}

// openFastPath makes the taps and the stations behind them and behind the NIC
// known to a new datapath. With VLANs the bridge is VLAN-aware, and its guests are
// isolated from each other and filtered.
func openFastPath(h *host, taps []tapsink.Tap, stations []ways.Station, vlans bool) (_ *fastPath, err error) {
	dp, err := hostbpf.Open(hostbpf.Options{PinDir: pinDir})
	if err != nil {
		return nil, fmt.Errorf("opening a datapath to measure: %w", err)
	}
	f := &fastPath{Datapath: dp, nic: h.nic.Attrs().Index, vlans: vlans}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(false))
		}
	}()
	bridge := h.bridge.Attrs().Index
	port := vswitch.PortConfig{Ifindex: f.nic, Bridge: bridge, Role: vswitch.RoleUplink, In: true, Out: true, MaxFrame: maxFrame}
	trunk, access := &vswitch.VLANSet{PVID: 1}, &vswitch.VLANSet{PVID: vlan}
	trunk.Put(1, true)
	trunk.Put(vlan, false)
	access.Put(vlan, true)
	if vlans {
		port.VLANProtocol, port.VLANs = vlanTPID, trunk
	}
	if err := dp.SetPort(port); err != nil {
		return nil, fmt.Errorf("adding nic0 to the datapath: %w", err)
	}
	for _, tap := range taps {
		port.Ifindex, port.Role = tap.Ifindex, vswitch.RoleGuest
		if vlans {
			port.VLANs, port.Isolated, port.Filter = access, true, antiSpoof
		}
		if err := dp.SetPort(port); err != nil {
			return nil, fmt.Errorf("adding %s to the datapath: %w", tap.Name, err)
		}
	}
	for _, s := range stations {
		if err := f.addEntry(bridge, s.Dest, s.Ifindex); err != nil {
			return nil, err
		}
		if err := f.addEntry(bridge, s.Source, f.nic); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *fastPath) addEntry(bridge int, mac [6]byte, port int) error {
	key := vswitch.FDBKey{Bridge: bridge, MAC: mac}
	if f.vlans {
		key.VLAN = vlan
	}
	if err := f.SetFDB(key, port, vswitch.OriginLearned); err != nil {
		return fmt.Errorf("adding %s to the datapath: %w", key.MAC, err)
	}
	return nil
}

// during calls measure while the datapath acts and counts its losses, and checks
// that every frame which measure sent got the wanted verdict: one that went by the
// bridge arrives as well, but not for the price that is to be measured.
func (f *fastPath) during(want vswitch.Verdict, measure func() (sent uint64, err error)) (err error) {
	if err := f.AttachLossCounters(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.DetachLossCounters()) }()
	if err := f.Renew(lease); err != nil {
		return err
	}
	before, err := f.Counters()
	if err != nil {
		return err
	}
	sent, err := measure()
	if err != nil {
		return err
	}
	after, err := f.Counters()
	if err != nil {
		return err
	}
	verdicts := after[f.nic].Verdicts[vswitch.HookXDP]
	for v, n := range before[f.nic].Verdicts[vswitch.HookXDP] {
		verdicts[v] -= n
	}
	if verdicts[want] != sent {
		return fmt.Errorf("checking verdicts: of %d frames %d were %s: %v", sent, verdicts[want], want, verdicts)
	}
	return nil
}

// mapBytes gives what the kernel says that each of the datapath's maps takes.
func (f *fastPath) mapBytes() (map[string]uint64, error) {
	sizes := map[string]uint64{}
	for name, m := range f.Maps() {
		info, err := m.Info()
		if err != nil {
			return nil, fmt.Errorf("reading the size of map %s: %w", name, err)
		}
		size, ok := info.Memlock()
		if !ok {
			return nil, fmt.Errorf("reading the size of map %s: the kernel does not tell it in fdinfo", name)
		}
		sizes[name] = size
	}
	return sizes, nil
}
