// Package qemu runs commands in virtual machines with kernels of their own, for
// tests. QEMU emulates the CPU, so this shows what works and never how fast.
package qemu

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/tapswitch/tapswitch/testvm/kernel"
	"github.com/tapswitch/tapswitch/testvm/qemu/guest"
)

// A Machine says what a guest is made of. The zero value is a small one with
// Linux 6.12 and nothing beside.
type Machine struct {
	// Kernel is the name of a kernel, as in kernel.Names; 6.12 if empty.
	Kernel string
	// Cache is where kernels come from; the user's if nil.
	Cache *kernel.Cache
	// CPUs is their number; 2 if 0.
	CPUs int
	// Memory is in MiB, and has to hold all Files beside what runs; 1024 if 0.
	Memory int
	// Type is QEMU's machine type; q35 if empty.
	Type string
	// Modules are loaded at start, with all that they need. virtio_net and what the
	// guest needs to talk to the host are always loaded.
	Modules []string
	// Files lie in the guest's root file system, in memory: path in the guest → path
	// on this machine. Programs must be static.
	Files map[string]string
	// Env is added to the environment of each command.
	Env []string
	// NICs are the guest's network devices, eth0 first.
	NICs []NIC
	// Append is added to the kernel's command line.
	Append string
	// Timeout bounds the guest's whole life, from when QEMU starts; 5 minutes if 0.
	Timeout time.Duration
	// Console receives what the guest's kernel says; errors have its end in any case.
	Console io.Writer
	// Log is told of kernels that are downloaded; nobody if nil.
	Log io.Writer
	// Init is a static program that calls guest.Main first. If empty, the go command
	// builds one, which works inside this module.
	Init string
	// Spawn starts QEMU; (*exec.Cmd).Start if nil. QEMU looks for its taps in the
	// network namespace where that is done: (*lab.Node).Start does it in a node's.
	Spawn func(*exec.Cmd) error
}

// A NIC is a network device, virtio_net on a tap.
type NIC struct {
	// Tap is the name of a tap, a multi-queue one if there are several queues. QEMU
	// makes it, for its own life, if there is none. If empty, the device is connected
	// to nothing, and has one queue.
	Tap string
	// MAC is the guest's address; QEMU's first one plus the device's number if empty.
	// Machines that meet need addresses of their own.
	MAC string
	// Queues is the number of queue pairs; 1 if 0.
	Queues int
	// Options are further properties of virtio-net-pci in QEMU's words, as in
	// "ctrl_guest_offloads=off" or "host_mtu=9000".
	Options []string
}

// The modules that each guest loads: its NICs and the way to the host.
var always = []string{"virtio_pci", "virtio_net", "virtio_console"}

// DefaultKernel is the one that tests run unless they ask for another.
const DefaultKernel = "6.12"

func (m *Machine) setDefaults() {
	if m.Kernel == "" {
		m.Kernel = DefaultKernel
	}
	if m.Cache == nil {
		m.Cache = &kernel.Cache{Log: m.Log}
	}
	if m.CPUs == 0 {
		m.CPUs = 2
	}
	if m.Memory == 0 {
		m.Memory = 1024
	}
	if m.Type == "" {
		m.Type = "q35"
	}
	if m.Timeout == 0 {
		m.Timeout = 5 * time.Minute
	}
	if m.Spawn == nil {
		m.Spawn = (*exec.Cmd).Start
	}
}

// The descriptors that QEMU inherits.
const (
	initrdFD = 3
	portFD   = 4
)

// args gives QEMU's arguments.
func (m *Machine) args(image string) []string {
	args := []string{
		"-name", "testvm",
		"-machine", m.Type,
		// KVM may be there and not work: emulation is everywhere the same.
		"-accel", "tcg,thread=multi",
		"-cpu", "max",
		"-smp", fmt.Sprint(m.CPUs),
		"-m", fmt.Sprint(m.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", image,
		"-initrd", fmt.Sprintf("/proc/self/fd/%d", initrdFD),
		// A kernel that is in doubt about itself ends the machine.
		"-append", strings.TrimSpace("console=ttyS0 quiet panic=-1 oops=panic " + m.Append),
		"-serial", "stdio",
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=host,fd=%d", portFD),
		"-device", "virtserialport,chardev=host,name=" + guest.PortName,
	}
	for i, n := range m.NICs {
		args = append(args, n.args(i)...)
	}
	return args
}

func (n NIC) args(i int) []string {
	netdev := fmt.Sprintf("hubport,id=nic%d,hubid=%d", i, i)
	if n.Tap != "" {
		netdev = fmt.Sprintf("tap,id=nic%d,ifname=%s,script=no,downscript=no,vhost=off", i, n.Tap)
	}
	mac := n.MAC
	if mac == "" {
		mac = fmt.Sprintf("52:54:00:12:34:%02x", 0x56+i)
	}
	// No ROM: nothing boots from it.
	device := fmt.Sprintf("virtio-net-pci,netdev=nic%d,mac=%s,romfile=", i, mac)
	if n.Queues > 1 && n.Tap != "" {
		netdev += fmt.Sprintf(",queues=%d", n.Queues)
		// Two interrupts per pair, one for changes of configuration, one for control.
		device += fmt.Sprintf(",mq=on,vectors=%d", 2*n.Queues+2)
	}
	if len(n.Options) > 0 {
		device += "," + strings.Join(n.Options, ",")
	}
	return []string{"-netdev", netdev, "-device", device}
}
