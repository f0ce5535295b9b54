package libvirt

import (
	"fmt"
	"slices"

	"github.com/tapswitch/tapswitch/vswitch"
)

// Holds gives the reasons why the interface's port stays on the slow path, or why
// it has none, as far as the kernel does not tell them. Isolation, MTU, limits,
// VLANs, and addresses that libvirt manages are flags, qdiscs and entries of the
// bridge or the tap, which are found there: for these there is nothing here.
//
// A filter is in libvirt's rules too, but those come after the tap, and may come
// after its first frames.
func (n Interface) Holds() []vswitch.HoldReason {
	if why := n.apart(); why != "" {
		return []vswitch.HoldReason{vswitch.Hold(vswitch.HoldInterface, "%s", why)}
	}
	var holds []vswitch.HoldReason
	if n.Type == "ethernet" {
		holds = append(holds, vswitch.HoldReason{Code: vswitch.HoldInterface, Text: ethernetRemark})
	}
	return append(holds, n.Filter.holds()...)
}

// HasTap says whether the interface is a tap that is a port of a Linux bridge, or
// can be made one. A network in a definition counts as such.
func (n Interface) HasTap() bool { return n.apart() == "" }

// apart says why the interface has no tap on a Linux bridge; empty if it has one.
func (n Interface) apart() string {
	const advice = "; <interface type='bridge'> is what the fast path serves"
	switch n.Type {
	case "bridge", "network", "ethernet":
		if n.VirtualPort != "" {
			return fmt.Sprintf("<virtualport type='%s'> is no port of a Linux bridge, but of a switch of another kind", n.VirtualPort)
		}
		return ""
	case "direct":
		return "a macvtap sits on its NIC itself, past any bridge" + advice
	case "hostdev":
		return "the guest has the NIC's own function, and the host sees none of its frames"
	case "vhostuser":
		return "frames go to another process's switch by shared memory, past the kernel" + advice
	case "vdpa":
		return "frames go to the NIC's own queues, past the kernel"
	case "user":
		return "the guest is behind a network stack of its own in a process, with no tap" + advice
	case "server", "client", "mcast", "udp":
		return "frames go through a socket of QEMU's, with no tap" + advice
	case "null":
		return "the interface leads nowhere"
	case "internal", "vds":
		return fmt.Sprintf("<interface type='%s'> is another hypervisor's, with no tap", n.Type)
	}
	return fmt.Sprintf("<interface type='%s'> is not known to have a tap on a bridge", n.Type)
}

// plainModels are those for whose taps no version of libvirt asks for a virtio-net
// header (virtio always, and e1000e, igb and vmxnet3 since 10.10 or so, get one).
// Without it QEMU can hand on nothing but complete frames.
var plainModels = []string{
	"e1000", "e1000-82544gc", "e1000-82545em", "rtl8139", "ne2k_pci", "ne2k_isa", "pcnet", "tulip",
	"i82550", "i82551", "i82557a", "i82557b", "i82557c", "i82558a", "i82558b", "i82559a", "i82559b", "i82559c", "i82559er", "i82562", "i82801",
	"usb-net", "lan9118", "smc91c111", "spapr-vlan",
}

// Virtio says whether the model is virtio-net.
func (n Interface) Virtio() bool {
	return slices.Contains([]string{"virtio", "virtio-transitional", "virtio-non-transitional"}, n.Model)
}

// Promotable says whether the guest can only send complete frames, so that native
// XDP on its tap does no harm, and why.
func (n Interface) Promotable() (ok bool, why string) {
	if why := n.apart(); why != "" {
		return false, why
	}
	switch {
	case slices.Contains(plainModels, n.Model):
		return true, fmt.Sprintf("QEMU completes the frames of model %s", n.Model)
	case n.Model == "":
		return false, "which model the NIC is, the XML leaves to libvirt"
	case !n.Virtio():
		return false, fmt.Sprintf("a guest with model %s may leave checksums and segments to the host", n.Model)
	}
	if left := n.HostOffloads.on(); len(left) > 0 {
		return false, "the guest may leave to the host: " + list(left)
	}
	return true, "the guest may leave nothing to the host: all of <driver><host> is off"
}
