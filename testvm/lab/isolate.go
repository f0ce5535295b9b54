// Package lab builds whole hosts, wires and guests out of network namespaces,
// with real stacks behind real taps, for tests, the demo and the benchmarks.
package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const isolatedEnv = "TAPSWITCH_LAB_ISOLATED"

// Isolate makes the rest of the program run in private PID, mount, network and
// UTS namespaces, with its own /proc, /sys, BPF file system and an empty /run.
// It runs the program again as the first process of these namespaces, waits for
// it and exits with its status; only in the inner run does it return. Whatever
// the inner run leaves behind (devices, programs, pins, mounts, processes) is
// ended by the kernel with its namespaces, also after a crash or SIGKILL.
//
// Call it first in main or TestMain. It needs root.
func Isolate() error {
	// A process that the inner run starts is not the first of its namespaces. If it
	// calls this, as the workers of a fuzz test do, it gets its own.
	if os.Getenv(isolatedEnv) != "" && os.Getpid() == 1 {
		return enter()
	}
	if os.Geteuid() != 0 {
		return errors.New("the lab makes network namespaces: run it as root")
	}
	status, err := rerun()
	if err != nil {
		return fmt.Errorf("making private namespaces: %w", err)
	}
	os.Exit(status)
	return nil
}

// rerun runs this program again in new namespaces and gives its exit status.
func rerun() (int, error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), isolatedEnv+"=1")
	var err error
	if cmd.ExtraFiles, err = inherited(); err != nil {
		return 0, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				cmd.Process.Signal(s)
			case <-done:
				return
			}
		}
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// inherited gives the files that this process was started with beside the standard
// ones, each at its place, nil where there is none: a fuzz test's worker hears by them
// what to do.
func inherited() ([]*os.File, error) {
	const first = 3
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("listing this process's files: %w", err)
	}
	var files []*os.File
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < first {
			continue
		}
		// What Go has opened is not for others.
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		for len(files) <= fd-first {
			files = append(files, nil)
		}
		files[fd-first] = os.NewFile(uintptr(fd), "inherited")
	}
	return files, nil
}

// enter prepares the mounts of the new namespaces.
func enter() error {
	mounts := []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"sysfs", "/sys", "sysfs", 0}, // a new instance shows the new network namespace
		{"bpf", "/sys/fs/bpf", "bpf", 0},
		{"tmpfs", "/run", "tmpfs", 0},
	}
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", m.fstype, m.target, err)
		}
	}
	return nil
}
