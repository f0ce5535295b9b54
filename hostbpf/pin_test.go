package hostbpf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
	"golang.org/x/sys/unix"
)

func TestOneWriter(t *testing.T) {
	const dir = "/sys/fs/bpf/one"
	d := open(t, dir)
	defer d.Close(false)
	_, err := Open(Options{PinDir: dir})
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("got %v, want an error that names process %d", err, os.Getpid())
	}
}

func TestNoBPFFS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bpf", "tapswitch")
	if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{PinDir: dir})
	if !errors.Is(err, ErrNoBPFFS) || !strings.Contains(err.Error(), "mount -t bpf") {
		t.Errorf("got %v, want an error that tells how to mount one", err)
	}
	if err := MountBPFFS(dir); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Dir(dir), 0)
	if err := MountBPFFS(dir); err != nil {
		t.Errorf("mounting where there is one: %v", err)
	}
	d := open(t, dir)
	if err := d.Close(false); err != nil {
		t.Error(err)
	}
}

func TestInterruptedStart(t *testing.T) {
	const dir = "/sys/fs/bpf/interrupted"
	if err := os.MkdirAll(filepath.Join(dir, "new", "maps"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := open(t, dir)
	if d.Adopted() {
		t.Error("a half-made datapath was adopted")
	}
	if err := d.Close(false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left (%v)", dir, err)
	}
}

// A datapath of another layout gives way, and what it has switched off is not forgotten.
func TestPinsOfOtherLayout(t *testing.T) {
	const dir = "/sys/fs/bpf/other"
	d := open(t, dir)
	nic := veth(t, "nic0")
	if err := d.SetPort(config(nic, vswitch.RoleUplink)); err != nil {
		t.Fatal(err)
	}
	if err := d.pins.noteOffloads(nic, hidingFeatures); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(true); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(dir, "v1")
	if err := os.Rename(filepath.Join(dir, layoutVersion), old); err != nil {
		t.Fatal(err)
	}
	if d = open(t, dir); d.Adopted() {
		t.Error("a datapath of another layout was adopted")
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("%s is left (%v)", old, err)
	}
	if noted, err := d.pins.notedOffloads(); err != nil || len(noted[nic]) != len(hidingFeatures) {
		t.Errorf("noted as switched off is %v (%v), want %v of %d", noted, err, hidingFeatures, nic)
	}
	// Its programs are no strangers that keep this one's off the device.
	if err := d.SetPort(config(nic, vswitch.RoleUplink)); err != nil {
		t.Error(err)
	}
	if err := d.Close(false); err != nil {
		t.Error(err)
	}
}

func TestDamagedPins(t *testing.T) {
	const dir = "/sys/fs/bpf/damaged"
	d := open(t, dir)
	if err := d.Close(true); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, layoutVersion, "maps", hooksMapFdb)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{PinDir: dir})
	if err == nil || !strings.Contains(err.Error(), hooksMapFdb) || !strings.Contains(err.Error(), "remove") {
		t.Errorf("got %v, want an error that names the map and tells what to remove", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

// TestCountersSurviveAdoption and begin anew with another port in the slot.
func TestCountersSurviveAdoption(t *testing.T) {
	b := newVerdictBed(t)
	dir := b.pins.root
	f := frame(macGuest, macOutside, other, 60)
	for range 3 {
		b.run(t, hooksProgUplinkRxXdp, b.uplink, f, 0)
	}
	if err := b.Close(true); err != nil {
		t.Fatal(err)
	}
	*b.Datapath = *open(t, dir)
	if got := b.counted(t)[counter{b.uplink, vswitch.HookXDP}][vswitch.Redirected]; got != 3 {
		t.Errorf("%d frames are counted after adoption, want 3", got)
	}
	if got := b.run(t, hooksProgUplinkRxXdp, b.uplink, f, 0); got != 4 {
		t.Errorf("action is %d right after adoption, want a redirect: the deadline was not over", got)
	}
	if err := b.DeletePort(b.uplink); err != nil {
		t.Fatal(err)
	}
	for len(b.ports.free) < PortCapacity-len(b.Ports()) {
		if err := b.Renew(time.Minute); err != nil { // the grace period ends by itself
			t.Fatal(err)
		}
	}
	if err := b.SetPort(config(b.uplink, vswitch.RoleUplink)); err != nil {
		t.Fatal(err)
	}
	if got := b.counted(t)[counter{b.uplink, vswitch.HookXDP}]; len(got) != 0 {
		t.Errorf("a new port has the counters of the one before: %v", got)
	}
}

func TestSeen(t *testing.T) {
	b := newVerdictBed(t)
	key := vswitch.FDBKey{Bridge: bridgeIfindex, MAC: macOutside}
	if _, ok := b.Seen(key); ok {
		t.Error("an address is seen before its first frame")
	}
	b.run(t, hooksProgUplinkRxXdp, b.uplink, frame(macGuest, macOutside, other, 60), 0)
	if ago, ok := b.Seen(key); !ok || ago > 10*time.Second {
		t.Errorf("an address is seen %v ago (%t) after its first frame", ago, ok)
	}
	var active []vswitch.FDBKey
	for k := range b.Active(10 * time.Second) {
		active = append(active, k)
	}
	if len(active) != 1 || active[0] != key {
		t.Errorf("active are %v, want %v alone", active, key)
	}
}
