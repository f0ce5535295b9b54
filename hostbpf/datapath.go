package hostbpf

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
	"golang.org/x/sys/unix"
)

var _ vswitch.Datapath = (*Datapath)(nil)

// Options say where a datapath is to be. The zero value is the host's own.
type Options struct {
	PinDir string // in a BPF file system; DefaultPinDir if empty
}

// A Datapath is the BPF datapath of the network namespace in which it was
// opened. Its methods are called by one goroutine.
type Datapath struct {
	pins     *pinDir
	adopted  bool
	maps     *hooksMaps
	programs *hooksPrograms
	lossCounters

	lease  lease
	ports  *portTable
	flows  []uint64
	fdb    *fdbTable
	graves *graveyard
	held   map[int]*portState  // by ifindex
	shared map[int]*sharedHook // XDP programs, by the ifindex of their device
	closes []func()
	untag  Devices // whose VLAN tags may be shown
	// untagged hears whose are.
	untagged func(device string, offloads []string)
	stuck    map[int]bool // devices, by ifindex, that go on to hide them
	blind    map[int]bool // those that do so unasked
	met      map[int]metFrames
}

// Open loads the datapath. If one is pinned it is adopted: its ports, entries,
// counters and attachments stay in force, and its programs are swapped for this
// process's without a gap. It does not act beyond its old deadline before Renew
// is called.
func Open(o Options) (_ *Datapath, err error) {
	if o.PinDir == "" {
		o.PinDir = DefaultPinDir
	}
	if err := checkKernel(); err != nil {
		return nil, err
	}
	d := &Datapath{held: map[int]*portState{}, shared: map[int]*sharedHook{}, stuck: map[int]bool{}, blind: map[int]bool{}, met: map[int]metFrames{}}
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	if d.pins, err = openPins(filepath.Clean(o.PinDir)); err != nil {
		return nil, err
	}
	d.closes = append(d.closes, func() { d.pins.close() })
	d.adopted = d.pins.exists()
	if d.maps, d.programs, err = load(d.pins); err != nil {
		return nil, err
	}
	d.closes = append(d.closes, func() { d.programs.Close(); d.maps.Close() })
	if err := d.open(); err != nil {
		return nil, err
	}
	return d, nil
}

// open takes over the maps' contents and the attachments.
func (d *Datapath) open() (err error) {
	if d.graves, err = newGraveyard(); err != nil {
		return err
	}
	d.closes = append(d.closes, d.graves.close)
	control, err := mapArray[hooksSwitchControl](d.maps.Control)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, control.close)
	slots, err := mapArray[hooksPort](d.maps.Ports)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, slots.close)
	vlans, err := mapArray[hooksPortVlans](d.maps.PortVlans)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, vlans.close)
	filters, err := mapArray[hooksPortFilter](d.maps.PortFilters)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, filters.close)
	index, err := mapArray[uint64](d.maps.PortIndex)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, index.close)
	buckets, err := mapArray[hooksFdbBucket](d.maps.Fdb)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, buckets.close)
	flows, err := mapArray[uint64](d.maps.Flows)
	if err != nil {
		return err
	}
	d.closes = append(d.closes, flows.close)
	d.flows = flows.entries
	if err := d.setControl(&control.entries[0]); err != nil {
		return err
	}
	// What the process before has removed may be looked at until now.
	if err := d.graves.wait(); err != nil {
		return err
	}
	d.ports = newPortTable(slots.entries, vlans.entries, filters.entries, index.entries, d.graves)
	d.fdb = newFDBTable(buckets.entries, d.lease.control.Seed, d.graves)
	return d.adoptPorts()
}

// setControl fills in what the programs are told once.
func (d *Datapath) setControl(c *hooksSwitchControl) error {
	hz, err := jiffiesPerSecond()
	if err != nil {
		return err
	}
	d.lease = lease{control: c, program: d.programs.Renew, hz: hz, renewed: time.Now()}
	netns, err := netnsInode()
	if err != nil {
		return err
	}
	if c.Netns != 0 && c.Netns != netns {
		return fmt.Errorf("the datapath pinned at %s belongs to network namespace %d, this is %d: start tapswitchd there, or name another directory with -pins", d.pins.root, c.Netns, netns)
	}
	info, err := d.maps.TxPorts.Info()
	if err != nil {
		return fmt.Errorf("reading the id of tx_ports: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return errors.New("reading the id of tx_ports: the kernel did not tell")
	}
	if c.Seed[0] == 0 {
		c.Seed = newSeeds()
	}
	c.Netns, c.TxPortsId = netns, uint32(id)
	atomic.StoreUint32(&c.SeenEvery, uint32(d.lease.jiffies(SeenEvery)))
	if !d.adopted { // what the process before was told holds until this one is
		d.Choose(Choice{DefaultBulkFrame, DefaultBulkIdle})
	}
	return nil
}

// SeenEvery is how often the datapath notes that it sees an address: often enough
// for ages in seconds, seldom enough to cost nothing.
const SeenEvery = 250 * time.Millisecond

// netnsInode tells this thread's network namespace from others.
func netnsInode() (uint32, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("looking at this network namespace: %w", err)
	}
	return uint32(st.Ino), nil
}

// Adopted says whether the datapath was there before.
func (d *Datapath) Adopted() bool { return d.adopted }

// PinDir gives the directory that holds the pins.
func (d *Datapath) PinDir() string { return d.pins.dir() }

// Renew lets the datapath act for the given time from now on. Call it several
// times as often, and only while the datapath is kept in step with the bridge.
func (d *Datapath) Renew(lease time.Duration) error {
	return errors.Join(d.lease.renew(lease), d.graves.tick())
}

// Expire makes every frame pass from now on, until Renew.
func (d *Datapath) Expire() { d.lease.expire() }

// Close ends this process's hold on the datapath. With keep it stays pinned, to
// be adopted, and stops acting when its deadline passes; otherwise every frame
// passes at once and everything that the datapath made is removed.
func (d *Datapath) Close(keep bool) (err error) {
	if !keep {
		d.lease.expire()
		for ifindex := range d.held {
			err = errors.Join(err, d.DeletePort(ifindex))
		}
		err = errors.Join(err, d.hideTagsAgain(), d.DetachLossCounters(), d.pins.remove())
	}
	d.release()
	return err
}

func (d *Datapath) release() {
	d.lossCounters.close()
	for i := len(d.closes) - 1; i >= 0; i-- {
		d.closes[i]()
	}
	d.closes = nil
}
