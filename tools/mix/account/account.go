// Package account tells whose CPU time it is: of the machines of a lab, which all
// live in one kernel, how much each spent on receiving and forwarding frames.
//
// The time of a machine is that of the NAPI polls of its veths (XDP, GRO, bridge,
// transmission into the next device) and of the receive function for what was
// written to its taps. Copying frames in and out of taps, which is the work of vhost
// for a virtual machine, is not in it, nor are system calls of stations. Taking the
// time costs some 200 ns per poll, and per frame from a tap, the same by every way.
package account

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// MaxMachines is how many machines an Account can tell apart.
const MaxMachines = 23

// An Account sums up the CPU time of machines from when it was opened.
type Account struct {
	objects         programsObjects
	links           []link.Link
	hosts, machines int
}

// Open begins to account for hosts and for the stations around them, each given by
// its network namespace's file descriptor. It needs CAP_BPF, CAP_PERFMON and kernel
// BTF.
func Open(hosts, stations []int) (_ *Account, err error) {
	namespaces := slices.Concat(hosts, stations)
	if len(namespaces) > MaxMachines {
		return nil, fmt.Errorf("accounting for %d machines: at most %d are possible", len(namespaces), MaxMachines)
	}
	spec, err := loadPrograms()
	if err != nil {
		return nil, fmt.Errorf("reading the programs that account for CPU time: %w", err)
	}
	var inums [MaxMachines + 1]uint32
	for i, fd := range namespaces {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, fmt.Errorf("asking for the number of network namespace %d: %w", fd, err)
		}
		inums[i+1] = uint32(st.Ino)
	}
	if err := spec.Variables["machines"].Set(inums); err != nil {
		return nil, fmt.Errorf("telling the accounting programs the machines: %w", err)
	}
	a := &Account{hosts: len(hosts), machines: len(namespaces)}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if err := spec.LoadAndAssign(&a.objects, nil); err != nil {
		return nil, fmt.Errorf("loading the programs that account for CPU time: %w", err)
	}
	if _, err := a.objects.Claim.Run(&ebpf.RunOptions{}); err != nil {
		return nil, fmt.Errorf("telling the accounting programs this process: %w", err)
	}
	for _, p := range []*ebpf.Program{
		a.objects.ReceiveLeave, a.objects.ReceiveEnter, a.objects.Received, a.objects.Sent, a.objects.Polled,
		a.objects.SoftirqLeave, a.objects.SoftirqEnter,
	} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return nil, fmt.Errorf("attaching %s (needs Linux 5.5): %w", p, err)
		}
		a.links = append(a.links, l)
	}
	return a, nil
}

// A Reading is CPU time from the Account's beginning, or between two readings.
type Reading struct {
	Hosts    []time.Duration // in the order given to Open
	Stations []time.Duration // of their receiving stacks alone
	// Ends is what everything but the hosts cost: this process's time (system calls,
	// relays, softirqs on top of them) without the hosts' part of it, and the
	// stations' softirqs on top of others.
	Ends time.Duration
}

// Read gives the time of all so far.
func (a *Account) Read() (Reading, error) {
	var all []programsCpu
	if err := a.objects.Cpus.Lookup(uint32(0), &all); err != nil {
		return Reading{}, fmt.Errorf("reading the CPU time of machines: %w", err)
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return Reading{}, fmt.Errorf("reading this process's CPU time: %w", err)
	}
	ends := usage.Utime.Nano() + usage.Stime.Nano()
	times := make([]time.Duration, a.machines)
	for _, c := range all {
		for i := range times {
			spent := c.Spent[i+1]
			times[i] += time.Duration(spent.OnSelf + spent.Elsewhere)
			if i < a.hosts {
				ends -= int64(spent.OnSelf)
			} else {
				ends += int64(spent.Elsewhere)
			}
		}
	}
	return Reading{Hosts: times[:a.hosts], Stations: times[a.hosts:], Ends: time.Duration(ends)}, nil
}

// Close ends the accounting.
func (a *Account) Close() error {
	var errs []error
	for _, l := range a.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, a.objects.Close())...)
}
