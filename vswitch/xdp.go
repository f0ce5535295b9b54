package vswitch

import "fmt"

// An XDPMode says which uplinks get native XDP. All others are served by tc alone.
type XDPMode uint8

// The modes.
const (
	XDPAuto   XDPMode = iota // those on which XDP is faster than tc
	XDPAlways                // all whose driver has it
	XDPNever
)

// XDPModes are the modes' names, by value.
var XDPModes = []string{"auto", "always", "never"}

func (m XDPMode) String() string { return enumName(XDPModes, m) }

// vethMTU is the largest MTU with which a veth may have XDP. Longer frames are
// copied into several pieces of pages (skb_pp_cow_data), and the frame behind one
// of odd length then begins at an odd address. A tap tells XDP frames from skbs by
// just that bit, and frees what is one byte before. Seen in Linux 6.18 by
// testvm/oracle: 4,096 bytes, less 256 of headroom, 320 of struct skb_shared_info
// and 18 of Ethernet and a tag.
const vethMTU = 3500

// without says why the uplink is to do without native XDP; "" if it need not.
func (m XDPMode) without(uplink Port) string {
	veth := uplink.VethMTU > 0
	switch {
	case uplink.VethMTU > vethMTU:
		return fmt.Sprintf("a veth with XDP and an MTU above %d crashes the kernel when its frames reach a tap; its frames go by tc", vethMTU)
	case m == XDPNever:
		return `the configuration says xdp = "never"; frames go by tc`
	case m == XDPAuto && veth:
		return `a veth copies each frame for XDP, so its frames go by tc, which is faster; xdp = "always" in the configuration changes that`
	}
	return ""
}
