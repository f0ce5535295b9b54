package vswitch

import (
	"cmp"
	"errors"
	"iter"
	"os"
	"slices"
)

// A Datapath is what the reconciler drives: the BPF datapath on a host, or a
// fake in tests. Both pass the contract test in package datapathtest.
// Its methods are called by one goroutine.
type Datapath interface {
	// Ports gives the configurations that the datapath holds, by ifindex.
	Ports() map[int]PortConfig
	// SetPort adds a port or changes it. After an error the datapath holds what
	// it held before; a *HeldError says that this device can't be served, and
	// os.ErrNotExist that there is no such device any more.
	SetPort(PortConfig) error
	// DeletePort removes a port and every forwarding entry that leads to it.
	// A port that is not there, or whose device is gone, is no error.
	DeletePort(ifindex int) error
	// FDB gives the forwarding entries with the ifindex of their port or Host.
	FDB() iter.Seq2[FDBKey, int]
	// SetFDB adds or changes an entry; one that is right already costs little.
	// The port must be held by the datapath, on the entry's bridge. ErrFull means
	// that there is no room; frames for the address then pass to the bridge. An entry
	// may take the place of another port's, if that port has more than its share: it
	// is then missing, learned ones before others.
	SetFDB(key FDBKey, port int, origin Origin) error
	// DeleteFDB removes an entry; one that is not there is no error.
	DeleteFDB(FDBKey) error
}

// ErrFull is returned by SetFDB if the table has no room for the entry.
var ErrFull = errors.New("forwarding table is full")

func asHeld(err error) (*HeldError, bool) {
	var h *HeldError
	return h, errors.As(err, &h)
}

// A PortChange is one difference between the datapath and the plan.
type PortChange struct {
	Ifindex int
	Want    PortConfig // zero if the port is to be deleted
}

// Diff gives the changes that make have equal to the plan, in an order that
// never leaves the datapath with more than both allow: deletions first.
func (p Plan) Diff(have map[int]PortConfig) []PortChange {
	var changes []PortChange
	for i := range have {
		if _, ok := p.Ports[i]; !ok {
			changes = append(changes, PortChange{Ifindex: i})
		}
	}
	for i, want := range p.Ports {
		if have[i] != want.Config {
			changes = append(changes, PortChange{Ifindex: i, Want: want.Config})
		}
	}
	slices.SortFunc(changes, func(a, b PortChange) int {
		if da, db := a.Want == (PortConfig{}), b.Want == (PortConfig{}); da != db {
			if da {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Ifindex, b.Ifindex)
	})
	return changes
}

// Entry gives the port that the datapath's entry for e should lead to, and
// whether it should have one. Addresses behind ports that the plan does not
// know, group addresses, and the host's other than the bridge's own are the bridge's
// alone; a bridge that does not tell VLANs apart may have entries for some, but does
// not use them.
func (p Plan) Entry(e FDBEntry) (port int, ok bool) {
	br, ok := p.Bridges[e.Bridge]
	if !ok || e.MAC.Group() || e.VLAN != 0 && !br.VLANFiltering {
		return 0, false
	}
	port = e.Destination()
	if port == Host {
		// Frames for the host's other addresses pass as unknown, and frames from one
		// as not learned, with an entry or without. A port in a thousand VLANs has its
		// own in each of them.
		return port, e.MAC == br.MAC
	}
	q, ok := p.Ports[port]
	// Whether an address that was learned on a locked port stays in is between the
	// bridge and whoever authenticates stations: a refresh could let one in again
	// that was just put out. With MAB, those that are not in are learned too.
	if q.Flags.Locked && e.Origin == OriginLearned {
		return 0, false
	}
	return port, ok && q.Config.Bridge == e.Bridge
}

// Reconcile makes the datapath hold what the observation and the bridge's FDB
// ask for, and gives the plan as it came out: ports that the datapath refused
// are in it as held back. It may be called at any time, any number of times.
// Entries for which there was no room are counted in full. The error is about
// the datapath itself, not about one port.
func Reconcile(dp Datapath, o *Observation, fdb map[FDBKey]FDBEntry) (plan Plan, full int, err error) {
	plan = NewPlan(o)
	for _, c := range plan.Diff(dp.Ports()) {
		err = errors.Join(err, applyPort(dp, plan, c))
	}
	var stale []FDBKey
	for key := range dp.FDB() {
		if _, ok := plan.Entry(fdb[key]); !ok {
			stale = append(stale, key)
		}
	}
	for _, key := range stale {
		err = errors.Join(err, dp.DeleteFDB(key))
	}
	for key, e := range fdb {
		want, ok := plan.Entry(e)
		if !ok {
			continue
		}
		switch e := dp.SetFDB(key, want, e.Origin); {
		case errors.Is(e, ErrFull):
			full++
		default:
			err = errors.Join(err, e)
		}
	}
	return plan, full, err
}

func applyPort(dp Datapath, plan Plan, c PortChange) error {
	if c.Want == (PortConfig{}) {
		return dp.DeletePort(c.Ifindex)
	}
	err := dp.SetPort(c.Want)
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrNotExist) {
		delete(plan.Ports, c.Ifindex) // the bridge's word that it has gone is under way
		return dp.DeletePort(c.Ifindex)
	}
	refused := plan.refuse(c.Ifindex, err)
	plan.Ports[c.Ifindex] = refused
	if err := dp.SetPort(refused.Config); err != nil {
		// Not even a held port: its frames must not meet the fast path at all.
		delete(plan.Ports, c.Ifindex)
		return errors.Join(err, dp.DeletePort(c.Ifindex))
	}
	return nil
}

// ReconcileEntry applies one change of the bridge's FDB. ok says whether the
// bridge has the entry.
func ReconcileEntry(dp Datapath, plan Plan, key FDBKey, e FDBEntry, ok bool) error {
	if ok {
		if port, ok := plan.Entry(e); ok {
			return dp.SetFDB(key, port, e.Origin)
		}
	}
	return dp.DeleteFDB(key)
}
