package livegen_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/bench/ways"
	"github.com/tapswitch/tapswitch/tools/livegen"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { lab.Main(m) }

const loopback = 1 // its ifindex, in every network namespace

func TestCountsExact(t *testing.T) {
	programs, err := ways.Load(ways.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	frame := livegen.UDPFrame([6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}, livegen.MinFrame)
	for _, tt := range []struct {
		name            string
		n, batch, times int
	}{
		{"one frame", 1, 0, 10},
		{"less than a batch", 63, 0, 10},
		{"one more than a batch", 65, 0, 10},
		{"largest batch", 1000, 256, 10},
		{"bursts", livegen.MinBurst, 0, 50},
		{"long enough to be preempted many times", 2_000_000, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, err := programs.Counted()
			if err != nil {
				t.Fatal(err)
			}
			var sent uint64
			var cpu time.Duration
			err = livegen.OnCPU(0, func(g *livegen.Generator) error {
				for range tt.times {
					b, err := g.Send(livegen.Traffic{Program: programs.Count, Ingress: loopback, Frame: frame, Batch: tt.batch}, tt.n)
					if err != nil {
						return err
					}
					if b.Interrupted != 0 {
						t.Errorf("interrupted %d times", b.Interrupted)
					}
					sent += b.Frames
					cpu += b.CPU
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			after, err := programs.Counted()
			if err != nil {
				t.Fatal(err)
			}
			if want := uint64(tt.n * tt.times); sent != want || after-before != want {
				t.Errorf("sent %d, counted %d, want %d", sent, after-before, want)
			}
			if cpu <= 0 {
				t.Errorf("CPU time is %v", cpu)
			}
		})
	}
}

// The runtime stops the world by signals to every running thread, and so does a
// profiler; neither may break off a run.
func TestNotInterrupted(t *testing.T) {
	programs, err := ways.Load(ways.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	frame := livegen.UDPFrame([6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}, livegen.MinFrame)
	const n, times = 500_000, 4
	var tid atomic.Int64
	done := make(chan struct{})
	signals := make(chan int)
	go func() {
		count := 0
		for {
			select {
			case <-done:
				signals <- count
				return
			default:
			}
			if tid := int(tid.Load()); tid != 0 {
				unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
				count++
			}
			runtime.GC()
		}
	}()
	err = livegen.OnCPU(0, func(g *livegen.Generator) error {
		tid.Store(int64(unix.Gettid()))
		for range times {
			b, err := g.Send(livegen.Traffic{Program: programs.Count, Ingress: loopback, Frame: frame}, n)
			if err != nil {
				return err
			}
			if b.Interrupted != 0 {
				t.Errorf("interrupted %d times", b.Interrupted)
			}
		}
		return nil
	})
	close(done)
	if got := <-signals; got == 0 {
		t.Error("no signal was sent")
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := programs.Counted(); err != nil || got != n*times {
		t.Errorf("counted %d (%v), want %d", got, err, n*times)
	}
}

func TestErrors(t *testing.T) {
	programs, err := ways.Load(ways.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	frame := livegen.UDPFrame([6]byte{}, [6]byte{}, 0)
	err = livegen.OnCPU(0, func(g *livegen.Generator) error {
		_, err := g.Send(livegen.Traffic{Program: programs.Count, Ingress: 9999, Frame: frame}, 64)
		return err
	})
	if err == nil {
		t.Error("a device that does not exist: no error")
	}
	if err := livegen.OnCPU(1000, func(*livegen.Generator) error { return nil }); err == nil {
		t.Error("a CPU that does not exist: no error")
	}
}
