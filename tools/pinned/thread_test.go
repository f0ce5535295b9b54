package pinned

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestGo(t *testing.T) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !before.IsSet(cpu) {
		cpu++
	}
	want := errors.New("from the function")
	var set unix.CPUSet
	done, err := Go(cpu, func() error {
		return errors.Join(unix.SchedGetaffinity(0, &set), want)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	if set.Count() != 1 || !set.IsSet(cpu) {
		t.Errorf("ran on CPUs %v, want %d alone", set, cpu)
	}
}

func TestNoSuchCPU(t *testing.T) {
	if _, err := Go(1000, func() error { t.Error("called"); return nil }); err == nil {
		t.Error("no error")
	}
}
