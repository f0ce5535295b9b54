package tapsink

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	lab.Main(m)
}

// transmit sends n frames of the given size out of a tap, as the stack would.
func transmit(t *testing.T, tap Tap, n, size int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	to := unix.SockaddrLinklayer{Ifindex: tap.Ifindex}
	frame := make([]byte, size)
	frame[0] = 2
	for range n {
		if err := unix.Sendto(fd, frame, 0, &to); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCountsExact(t *testing.T) {
	const taps = 7
	s, err := Open(Options{Taps: taps, Name: func(i int) string { return fmt.Sprintf("guest%d", i) }, QueueLen: 4000, CPU: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := make([]uint64, taps)
	total := 0
	for round := range 3 {
		for i, tap := range s.Taps() {
			n := (i * 501) * (round + 1) % 3000 // none from the first one
			transmit(t, tap, n, 60+i*200)
			want[i] += uint64(n)
			total += n
		}
		s.Settle() // long enough for the reader to fall asleep, too
	}
	if diff := cmp.Diff(want, s.Counts()); diff != "" {
		t.Errorf("frames by tap (-want +got):\n%s", diff)
	}
	if got := s.Frames(); got != uint64(total) {
		t.Errorf("got %d frames, want %d", got, total)
	}
}

func TestTaps(t *testing.T) {
	s, err := Open(Options{Taps: 2, QueueLen: 5000, CPU: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, tap := range s.Taps() {
		link, err := netlink.LinkByIndex(tap.Ifindex)
		if err != nil {
			t.Fatal(err)
		}
		if a := link.Attrs(); a.Name != tap.Name || a.TxQLen != 5000 || a.OperState == netlink.OperDown {
			t.Errorf("%+v is %s with a queue of %d, %v", tap, a.Name, a.TxQLen, a.OperState)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, tap := range s.Taps() {
		if _, err := netlink.LinkByIndex(tap.Ifindex); err == nil {
			t.Errorf("%s is still there after Close", tap.Name)
		}
	}
}

func TestNoLeaks(t *testing.T) {
	defer goleak.VerifyNone(t)
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := descriptors()
	for range 3 {
		s, err := Open(Options{Taps: 4, CPU: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(Options{Taps: 4, CPU: 1000}); err == nil {
		t.Error("a CPU that does not exist: no error")
	}
	if after := descriptors(); after != before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

func TestNameTaken(t *testing.T) {
	same := func(int) string { return "same" }
	if _, err := Open(Options{Taps: 2, Name: same, CPU: 1}); err == nil {
		t.Error("two taps with one name: no error")
	}
}

// Closing while the reader sleeps, and while frames come.
func TestClosePromptly(t *testing.T) {
	s, err := Open(Options{CPU: 1})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * nap * time.Millisecond)
	transmit(t, s.Taps()[0], 500, 60)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still not closed after 10 s")
	}
}

func TestDrainDoesNotAllocate(t *testing.T) {
	tap, fd, err := openTap("", 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	transmit(t, tap, 900, 60)
	buf := make([]byte, 2048)
	read := 0
	if allocs := testing.AllocsPerRun(10, func() {
		n, err := drain(fd, buf)
		if err != 0 {
			t.Fatal(err)
		}
		read += n
	}); allocs != 0 {
		t.Errorf("%v allocations per visit", allocs)
	}
	if want := 11 * visit; read != want { // AllocsPerRun warms up once
		t.Errorf("read %d frames in 11 visits, want %d", read, want)
	}
}
