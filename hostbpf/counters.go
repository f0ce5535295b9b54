package hostbpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/tapswitch/tapswitch/vswitch"
)

// PortCounters are one port's counters since it was added.
type PortCounters struct {
	// Verdicts counts the frames that came in by the port, by hook and verdict.
	// At vswitch.HookTC a frame may be several of the wire's, merged.
	Verdicts [vswitch.NumHooks]map[vswitch.Verdict]uint64
	// Flushes, Flushed and Lost count what XDP redirects handed to the port's
	// device: how often, how many frames it took, and how many it did not take.
	Flushes, Flushed, Lost uint64
}

// Counters gives every port's counters, by ifindex.
func (d *Datapath) Counters() (map[int]PortCounters, error) {
	all := make(map[int]PortCounters, len(d.held))
	var verdicts []hooksVerdictCounts
	var flushes []hooksFlushCounts
	for ifindex, s := range d.held {
		var c PortCounters
		for _, at := range vswitch.Hooks() {
			if err := d.maps.Verdicts.Lookup(verdictIndex(s.slot, at), &verdicts); err != nil {
				return nil, fmt.Errorf("reading the verdicts of port %d: %w", ifindex, err)
			}
			c.Verdicts[at] = sumVerdicts(verdicts)
		}
		if err := d.maps.Flushes.Lookup(s.slot, &flushes); err != nil {
			return nil, fmt.Errorf("reading the flushes of port %d: %w", ifindex, err)
		}
		for cpu := range flushes {
			c.Flushes += flushes[cpu].Flushes
			c.Flushed += flushes[cpu].Frames
			c.Lost += flushes[cpu].Lost
		}
		all[ifindex] = c
	}
	return all, nil
}

// verdictIndex is where the counters of a slot's hook are.
func verdictIndex(slot uint32, at vswitch.Hook) uint32 {
	return slot*uint32(hooksHookHOOKS) + uint32(at)
}

// sumVerdicts adds up the CPUs, and leaves out what is zero.
func sumVerdicts(cpus []hooksVerdictCounts) map[vswitch.Verdict]uint64 {
	sum := map[vswitch.Verdict]uint64{}
	for _, c := range cpus {
		for v, n := range c.Frames {
			if n != 0 {
				sum[vswitch.Verdict(v)] += n
			}
		}
	}
	return sum
}

// Unclaimed counts frames that came in by a device which is not a port.
func (d *Datapath) Unclaimed() (n uint64, err error) {
	var verdicts []hooksVerdictCounts
	for _, at := range vswitch.Hooks() {
		if err := d.maps.Verdicts.Lookup(verdictIndex(0, at), &verdicts); err != nil {
			return 0, fmt.Errorf("reading the verdicts of no port: %w", err)
		}
		n += sumVerdicts(verdicts)[vswitch.PassNoPort]
	}
	return n, nil
}

// A Loss counts frames that were lost after their verdict, by the port that they
// should have left by and the kernel's reason.
type Loss struct {
	Ifindex int
	// Errno is the kernel's positive error number; 0 if the device took fewer
	// frames than it was handed, as a tap does whose ring is full.
	Errno  int
	Frames uint64
}

// Losses gives the losses since the datapath was made.
func (d *Datapath) Losses() ([]Loss, error) {
	var (
		all  []Loss
		key  hooksLossKey
		n    uint64
		iter = d.maps.Losses.Iterate()
	)
	for iter.Next(&key, &n) {
		all = append(all, Loss{Ifindex: int(key.Ifindex), Errno: -int(key.Err), Frames: n})
	}
	if err := iter.Err(); err != nil {
		return nil, fmt.Errorf("reading losses: %w", err)
	}
	return all, nil
}

// forgetLosses removes the counters of a port that is gone, so that they are
// not taken for another's.
func (d *Datapath) forgetLosses(ifindex int) error {
	losses, err := d.Losses()
	for _, l := range losses {
		if l.Ifindex != ifindex {
			continue
		}
		key := hooksLossKey{Ifindex: uint32(ifindex), Err: -int32(l.Errno)}
		if e := d.maps.Losses.Delete(key); e != nil && !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, fmt.Errorf("removing loss counters: %w", e))
		}
	}
	return err
}

// clearCounters makes a slot ready for another port.
func (d *Datapath) clearCounters(slot uint32) error {
	cpus, err := ebpf.PossibleCPU()
	for _, at := range vswitch.Hooks() {
		if err == nil {
			err = d.maps.Verdicts.Put(verdictIndex(slot, at), make([]hooksVerdictCounts, cpus))
		}
	}
	if err == nil {
		err = d.maps.Flushes.Put(slot, make([]hooksFlushCounts, cpus))
	}
	if err != nil {
		return fmt.Errorf("clearing the counters of slot %d: %w", slot, err)
	}
	return nil
}
