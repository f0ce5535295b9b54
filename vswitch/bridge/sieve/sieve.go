// Package sieve drops forwarding events that nobody needs where the kernel makes
// them: a guest that floods addresses then wakes nobody.
//
// A filter on the rtnetlink socket keeps a table of the entries about which it has
// let word through, by a hash of 19 bits, and follows these for ever. Of others it
// drops what ports without room have learned, and all deletions. It needs Linux 5.10
// and CAP_BPF with CAP_NET_ADMIN, or CAP_SYS_ADMIN.
package sieve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A Sieve is the filter of one socket. Its methods may be called at any time, also
// after Close, but not at once, except for Settle.
type Sieve struct {
	objects      sieveObjects
	outer, inner *ebpf.Map // of Settle
	shared       *sieveSieveShared
}

// placeBits is the C source's HELD_BITS.
const placeBits = 19

var _ = [1]struct{}{}[len(sieveSieveShared{}.Missed)-1<<placeBits]

// wornAt is how many places of the table may be taken by what is nobody's before it
// is to be made anew: a 16th, so that a 16th of a flood would pass.
const wornAt = 1 << placeBits / 16

// New loads a filter that lets everything pass.
func New() (*Sieve, error) {
	s := &Sieve{}
	if err := s.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("loading the filter of events: %w", err), s.Close())
	}
	return s, nil
}

func (s *Sieve) load() (err error) {
	if err := rlimit.RemoveMemlock(); err != nil { // to which Linux before 5.11 holds maps
		return err
	}
	if err := loadSieveObjects(&s.objects, nil); err != nil {
		return err
	}
	memory, err := unix.Mmap(s.objects.Shared.FD(), 0, int(unsafe.Sizeof(*s.shared)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping the table: %w", err)
	}
	s.shared = (*sieveSieveShared)(unsafe.Pointer(unsafe.SliceData(memory)))
	// Whoever is reading events when the socket is closed may still look at it.
	runtime.AddCleanup(s, func(memory []byte) { unix.Munmap(memory) }, memory)
	for i := range s.shared.Seed {
		s.shared.Seed[i] = rand.Uint64() | 1
	}
	inner := &ebpf.MapSpec{Name: "settle_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	if s.inner, err = ebpf.NewMap(inner); err != nil {
		return err
	}
	s.outer, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "settle", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner,
	})
	return err
}

// Attach makes it the filter of a socket, in place of another.
func (s *Sieve) Attach(socket syscall.RawConn) error {
	var err error
	if e := socket.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_BPF, s.objects.Sieve.FD())
	}); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("attaching the filter of events: %w", err)
	}
	return nil
}

// Close gives the maps back. The filter stays on its socket until that is closed.
func (s *Sieve) Close() error {
	return errors.Join(s.objects.Close(), s.outer.Close(), s.inner.Close())
}

// Passes runs the filter over a message, as the kernel does with each: for tests.
func (s *Sieve) Passes(message []byte) (bool, error) {
	const link = 14 // bytes of a header that the kernel takes off first
	n, err := s.objects.Sieve.Run(&ebpf.RunOptions{Data: append(make([]byte, link), message...)})
	if err != nil {
		return false, fmt.Errorf("running the filter of events: %w", err)
	}
	return n != 0, nil
}

// Settle returns when every event on its way at the call has been dropped or is in
// the socket's queue: some 10 to 50 ms. An update of a map of maps waits for all
// readers of RCU, as those are who make events.
func (s *Sieve) Settle() error {
	if err := s.outer.Put(uint32(0), s.inner); err != nil {
		return fmt.Errorf("waiting for events on their way: %w", err)
	}
	return nil
}

func (s *Sieve) place(key vswitch.FDBKey) uint64 {
	var b [8]byte
	copy(b[:], key.MAC[:])
	mixed := binary.LittleEndian.Uint64(b[:]) | uint64(key.VLAN)<<48
	mixed = (mixed + uint64(key.Bridge)*0x9e3779b97f4a7c15) * s.shared.Seed[0]
	mixed ^= mixed >> 32
	return mixed * s.shared.Seed[1] >> (64 - placeBits)
}

// Hold has all word of an entry pass from now on.
func (s *Sieve) Hold(key vswitch.FDBKey) {
	at, mode := s.place(key), s.mode()
	s.shared.Held[mode>>1][at] = 1
	if mode&1 != 0 {
		s.shared.Held[1-(mode>>1)][at] = 1
	}
}

// Shut has what a port learns dropped, but for entries that are held. If it can't be
// done, everything passes, which is never wrong.
func (s *Sieve) Shut(ifindex int) {
	_ = s.objects.Shut.Update(uint32(ifindex), uint64(0), ebpf.UpdateNoExist)
}

// Open undoes Shut, and gives how many events it has dropped.
func (s *Sieve) Open(ifindex int) (dropped uint64) {
	dropped = s.Dropped(ifindex)
	_ = s.objects.Shut.Delete(uint32(ifindex))
	return dropped
}

// Dropped gives how many events of new entries were dropped of a port since it was
// shut.
func (s *Sieve) Dropped(ifindex int) (n uint64) {
	_ = s.objects.Shut.Lookup(uint32(ifindex), &n)
	return n
}

// Miss notes that there was word of an entry that its owner did not take.
func (s *Sieve) Miss(key vswitch.FDBKey) { s.shared.Missed[s.place(key)] = 1 }

// Missed says whether word of an entry was dropped, or noted by Miss, since
// ForgetMissed. It may say so of others too.
func (s *Sieve) Missed(key vswitch.FDBKey) bool { return s.shared.Missed[s.place(key)] != 0 }

// ForgetMissed begins to note anew.
func (s *Sieve) ForgetMissed() { clear(s.shared.Missed[:]) }

func (s *Sieve) mode() uint32 { return atomic.LoadUint32(&s.shared.Mode) }

// Worn says whether the table has many entries that are nobody's any more, and it is
// time for Renew.
func (s *Sieve) Worn() bool { return atomic.LoadUint64(&s.shared.Marked) > wornAt }

// Renew begins another table beside the one in force. What comes into the socket's
// queue after it has returned is in both.
func (s *Sieve) Renew() error {
	mode := s.mode() | 1
	clear(s.shared.Held[1-(mode>>1)][:])
	atomic.StoreUint32(&s.shared.Mode, mode)
	return s.Settle()
}

// Renewing says whether a table has been begun that is not yet in force.
func (s *Sieve) Renewing() bool { return s.mode()&1 != 0 }

// Renewed puts it in force. It must hold all that its owner has, and every event that
// was in the queue when Renew returned must have been read.
func (s *Sieve) Renewed() {
	atomic.StoreUint64(&s.shared.Marked, 0)
	atomic.StoreUint32(&s.shared.Mode, ^s.mode()&2)
}
