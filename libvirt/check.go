package libvirt

import (
	"fmt"
	"slices"

	"github.com/tapswitch/tapswitch/vswitch"
)

// The ways of frames from a guest.
const (
	WayTC     = "tc"
	WayXDP    = "native XDP"
	WayFast   = "fast" // by any of these
	WayBridge = "bridge"
	WayNone   = "none" // past any Linux bridge
)

// A Checked is an interface with what becomes of it on the fast path, as far as
// its XML tells.
type Checked struct {
	Interface
	// In is the way of frames from the guest, Out that of frames to it, which where
	// they come in decides: WayFast or not.
	In     string               `json:"in"`
	Out    string               `json:"out"`
	Why    string               `json:"why"` // of native XDP or none on its tap
	Held   []vswitch.HoldReason `json:"held"`
	Advice []Advice             `json:"advice"`
}

// Check tells what becomes of an interface of a domain.
func (d Domain) Check(n Interface) Checked {
	c := Checked{Interface: n, In: WayTC, Out: WayFast, Held: append(n.Holds(), n.kernelHolds()...), Advice: d.advise(n, Tuning{})}
	var promoted bool
	if promoted, c.Why = n.Promotable(); promoted {
		c.In = WayXDP
	}
	var closed vswitch.Direction
	for _, h := range c.Held {
		closed |= h.Direction
	}
	if closed&vswitch.In != 0 {
		c.In = WayBridge
	}
	if closed&vswitch.Out != 0 {
		c.Out = WayBridge
	}
	if !n.HasTap() {
		c.In, c.Out = WayNone, WayNone
	}
	return c
}

// kernelHolds foretells reasons that the switch finds in the kernel once the domain
// runs.
func (n Interface) kernelHolds() (holds []vswitch.HoldReason) {
	if !n.HasTap() {
		return nil
	}
	const remedy = "take it out of <bandwidth> if the guest need not be limited"
	if n.LinkDown {
		holds = append(holds, vswitch.Hold(vswitch.HoldDown, "<link state='down'/> takes the guest off the network"))
	}
	if n.FromGuest != nil {
		holds = append(holds, vswitch.Hold(vswitch.HoldForeign, "<outbound> makes a tc filter that drops frames from the guest; %s", remedy))
	}
	if n.ToGuest != nil {
		r := vswitch.Hold(vswitch.HoldQdisc, "<inbound> makes a qdisc that drops frames to the guest, which XDP goes past; %s", remedy)
		r.Direction = vswitch.Out
		holds = append(holds, r)
	}
	if len(n.VLANs) > 0 {
		holds = append(holds, vswitch.HoldReason{Code: vswitch.HoldVLAN, Text: "<vlan> needs a VLAN-aware bridge: 'tapswitch ports' says whether that one is fast"})
	}
	return holds
}

// An Advice is a change of the XML that makes an interface faster.
type Advice struct {
	Change string `json:"change"` // XML, or in words what no XML could be given for
	Why    string `json:"why"`
	// By says how 'tapswitch domain tune' makes the change: "tune" by itself, else
	// the flag that it takes; empty if a person has to.
	By string `json:"by"`

	edit edit
}

// The values of Advice.By.
const (
	ByTune      = "tune"
	ByVirtio    = "tune --virtio"
	ByNativeXDP = "tune --native-xdp"
)

// maxQueues is how many pairs of queues a tap can have (MAX_TAP_QUEUES of the
// kernel).
const maxQueues = 256

// advise gives the changes that make an interface of the domain faster; those that
// the tuning chooses are taken as made for the ones after them.
func (d Domain) advise(n Interface, t Tuning) (advice []Advice) {
	if !n.HasTap() {
		switch n.Type {
		case "direct", "vhostuser", "user":
			advice = append(advice, Advice{
				Change: "<interface type='bridge'>",
				Why:    "the fast path serves taps that are ports of a Linux bridge",
			})
		}
		return advice
	}
	if slices.ContainsFunc(n.Filter.holds(), func(r vswitch.HoldReason) bool { return r.Direction != 0 }) {
		advice = append(advice, Advice{
			Change: fmt.Sprintf("no <filterref filter='%s'>", n.Filter.Name),
			Why:    "frames that a filter decides over go by the bridge; only for a guest that is trusted, since nothing keeps it from spoofing then",
		})
	}
	if !n.Virtio() && n.Model != "" {
		advice = append(advice, Advice{
			Change: "<model type='virtio'/>", By: ByVirtio,
			Why:  fmt.Sprintf("QEMU emulates model %s frame by frame; the guest needs a driver for virtio", n.Model),
			edit: setVirtio,
		})
		if t.Virtio {
			n.Model = "virtio"
		}
	}
	if !n.Virtio() {
		return advice
	}
	if n.Driver == "qemu" {
		advice = append(advice, Advice{
			Change: "<driver> without name='qemu'", By: ByTune,
			Why:  "with vhost the kernel takes up to 64 frames from the guest at a time, QEMU itself one by a system call",
			edit: dropDriverName,
		})
	}
	// A tap that somebody else has made has the queues that it was made with.
	if want := min(2*d.VCPUs, maxQueues); n.Queues < want && n.Type != "ethernet" {
		advice = append(advice, Advice{
			Change: fmt.Sprintf("<driver queues='%d'/>", want), By: ByTune,
			Why:  "each vCPU gets queues of its own, and as many again are for XDP in the guest, which else has to take locks to send",
			edit: setQueues(want),
		})
	}
	if left := n.HostOffloads.on(); len(left) > 0 {
		advice = append(advice, Advice{
			Change: "<driver><host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/></driver>", By: ByNativeXDP,
			Why:  "a guest that sends complete frames alone gets native XDP, faster for many small frames to other guests; its bulk TCP gets slower, because it makes checksums and segments itself",
			edit: setHostOffloadsOff,
		})
	}
	return advice
}
