package bridge

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// readFor is how long one look reads the ports' tables. The kernel walks through a
// bridge's whole table for each port: 80 ms with a million entries, 20 s with 256
// ports. There is no request that takes fewer walks.
const readFor = time.Second / 2

// askBatch is the number of entries that the kernel is asked for at once: their
// answers must fit into a receive buffer of the usual size.
const askBatch = 64

// tables is the reading of the bridges' forwarding tables into a mirror. Ports are
// read whole, up to their bound of learned entries: first those that were not for
// longest, while there is time. Of the others, and of those that have no room for more
// anyway, the kernel is asked for each entry that the mirror had: it keeps what is
// still true, and its ports keep the same entries. Neither takes a time that grows with
// what a guest has put into a table times the number of ports.
type tables struct {
	*Mirror
	old     *Mirror
	full    map[int]bool // ports that have more than their bound
	learned map[int]int  // entries that count, by port
	between func()
}

func (t *tables) read(epoch uint64) (err error) {
	c, err := dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	indexes := slices.AppendSeq(slices.Collect(maps.Keys(t.Bridges)), maps.Keys(t.Ports))
	slices.SortFunc(indexes, func(a, b int) int { return cmp.Compare(t.old.read[a], t.old.read[b]) })
	crowded := t.old.gate.crowded()
	until := time.Now().Add(t.readFor)
	for i, index := range indexes {
		more, shut := crowded[index]
		if shut && more {
			t.full[index] = true
		}
		if shut || i > 0 && time.Now().After(until) {
			t.Mirror.read[index] = t.old.read[index]
			continue
		}
		more, err := t.dumpPort(c, index)
		if err != nil {
			return err
		}
		t.Mirror.read[index] = epoch
		if t.between(); !more {
			continue
		}
		// The kernel has the rest of the answer ready.
		t.full[index] = true
		if err := c.Close(); err != nil {
			return err
		}
		if c, err = dial(); err != nil {
			return err
		}
	}
	if err := t.verify(c, epoch); err != nil {
		return err
	}
	for _, index := range indexes {
		_, shut := crowded[index]
		_, before := t.old.read[index]
		switch {
		case t.Mirror.read[index] == epoch, shut && t.learned[index] >= t.bound(index):
		case shut || t.old.stale || t.old.partial[index] || !before:
			t.partial[index] = true
		}
	}
	return nil
}

func (t *tables) bound(index int) int {
	return t.old.gate.bound(t.Ports[index].Role == vswitch.RoleUplink)
}

// dumpPort reads the entries of a port, or those of a bridge that lead to no
// port, up to its bound.
func (t *tables) dumpPort(c *conn, index int) (more bool, err error) {
	req, err := request(unix.RTM_GETNEIGH, unix.IfInfomsg{Family: unix.AF_BRIDGE, Index: int32(index)}, netlink.NewAttributeEncoder())
	if err != nil {
		return false, err
	}
	now := time.Now()
	err = c.dump(req, func(b []byte) bool {
		if e, ok := parseEntry(b, now); ok {
			more = !t.add(e)
		}
		return !more
	})
	return more, err
}

// add takes an entry over, and says whether its port had room.
func (t *tables) add(e vswitch.FDBEntry) (room bool) {
	if old, there := t.FDB[e.FDBKey]; there && bounded(old) {
		t.learned[old.Port]--
	}
	if bounded(e) {
		if t.learned[e.Port] >= t.bound(e.Port) {
			t.remove(e.FDBKey)
			return false
		}
		t.learned[e.Port]++
	}
	t.put(e)
	return true
}

// verify asks for the entries that the mirror had of ports that were not read.
func (t *tables) verify(c *conn, epoch uint64) error {
	now := time.Now()
	batch := make([]netlink.Message, 0, askBatch)
	ask := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := c.ask(batch, func(b []byte) {
			if e, ok := parseEntry(b, now); ok && !t.add(e) {
				t.full[e.Port] = true
			}
		})
		batch = batch[:0]
		t.between()
		return err
	}
	for key, e := range t.old.FDB {
		if _, there := t.FDB[key]; there || t.Mirror.read[e.Port] == epoch {
			continue
		}
		if batch = append(batch, entryRequest(key)); len(batch) == askBatch {
			if err := ask(); err != nil {
				return err
			}
		}
	}
	return ask()
}

// entryRequest asks for one entry.
func entryRequest(key vswitch.FDBKey) netlink.Message {
	data := make([]byte, unix.SizeofNdMsg, 48)
	data[0] = unix.AF_BRIDGE
	data = native.AppendUint32(appendAttributeHeader(data, unix.NDA_MASTER, 4), uint32(key.Bridge))
	data = append(append(appendAttributeHeader(data, unix.NDA_LLADDR, 6), key.MAC[:]...), 0, 0)
	if key.VLAN != 0 {
		data = append(native.AppendUint16(appendAttributeHeader(data, unix.NDA_VLAN, 2), uint16(key.VLAN)), 0, 0)
	}
	return netlink.Message{Header: netlink.Header{Type: unix.RTM_GETNEIGH, Flags: netlink.Request}, Data: data}
}
