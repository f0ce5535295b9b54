package libvirtd

import (
	"fmt"
	"strings"
)

// A Guest is a virtual machine to be made. It has room for a few devices more.
type Guest struct {
	Name string
	UUID string // empty for one that libvirt chooses
	// Interfaces are <interface> elements; see BridgeInterface.
	Interfaces []string
	// Linux is what it boots; nil for firmware alone, which finds nothing to boot.
	Linux *Linux
	// Disk is the path of a qcow2 image, which EmptyDisk makes; empty for none. Without
	// one there are no snapshots.
	Disk string
	// Addr is the address of its eth0 with the network's length, if it boots Linux.
	Addr string
}

// hotplugPorts is how many devices can be added to a running guest.
const hotplugPorts = 4

// XML gives the guest's definition.
func (g Guest) XML() string {
	memory, boot := 64, ""
	if g.Linux != nil {
		memory = 256
		boot = fmt.Sprintf("<kernel>%s</kernel><initrd>%s</initrd><cmdline>console=ttyS0 panic=-1 addr=%s</cmdline>",
			g.Linux.Kernel, g.Linux.Initramfs, g.Addr)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<domain type='qemu'><name>%s</name>", g.Name)
	if g.UUID != "" {
		fmt.Fprintf(&b, "<uuid>%s</uuid>", g.UUID)
	}
	fmt.Fprintf(&b, "<memory unit='MiB'>%d</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type>%s</os>", memory, boot)
	b.WriteString("<features><acpi/></features><devices><controller type='pci' index='0' model='pcie-root'/>")
	for range len(g.Interfaces) + hotplugPorts {
		b.WriteString("<controller type='pci' model='pcie-root-port'/>")
	}
	b.WriteString("<controller type='usb' model='none'/><memballoon model='none'/>")
	if g.Linux != nil {
		fmt.Fprintf(&b, "<serial type='file'><source path='%s'/></serial>", g.Linux.Console(g.Name))
	}
	if g.Disk != "" {
		fmt.Fprintf(&b, "<disk type='file'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='vda' bus='virtio'/></disk>", g.Disk)
	}
	for _, i := range g.Interfaces {
		b.WriteString(i)
	}
	b.WriteString("</devices></domain>")
	return b.String()
}

// BridgeInterface gives an <interface> on a bridge, with what more stands in it.
func BridgeInterface(mac, bridge, more string) string {
	return fmt.Sprintf("<interface type='bridge'><mac address='%s'/><source bridge='%s'/><model type='virtio'/>%s</interface>", mac, bridge, more)
}
