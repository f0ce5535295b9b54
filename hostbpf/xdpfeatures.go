package hostbpf

import (
	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// What drivers say of themselves in the kernel's netdev family (Linux 6.3,
// Documentation/netlink/specs/netdev.yaml).
const (
	netdevCmdDevGet      = 1
	netdevDevIfindex     = 1
	netdevDevXDPFeatures = 3

	xdpFeatureBasic    = 1
	xdpFeatureRedirect = 2
)

// checkXDPFeatures refuses a device whose driver says that it can't run native
// XDP or redirect. A kernel that can't tell is no error: the attempt will.
func checkXDPFeatures(ifindex int) error {
	features, known := xdpFeatures(ifindex)
	if need := uint64(xdpFeatureBasic | xdpFeatureRedirect); known && features&need != need {
		return noXDP("the driver has no native XDP with redirect (xdp-features %#x)", features)
	}
	return nil
}

func xdpFeatures(ifindex int) (features uint64, known bool) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	family, err := conn.GetFamily("netdev")
	if err != nil {
		return 0, false
	}
	attrs := netlink.NewAttributeEncoder()
	attrs.Uint32(netdevDevIfindex, uint32(ifindex))
	request, err := attrs.Encode()
	if err != nil {
		return 0, false
	}
	answer, err := conn.Execute(genetlink.Message{
		Header: genetlink.Header{Command: netdevCmdDevGet, Version: family.Version}, Data: request,
	}, family.ID, netlink.Request)
	if err != nil || len(answer) != 1 {
		return 0, false
	}
	decoder, err := netlink.NewAttributeDecoder(answer[0].Data)
	if err != nil {
		return 0, false
	}
	for decoder.Next() {
		if decoder.Type() == netdevDevXDPFeatures {
			features, known = decoder.Uint64(), true
		}
	}
	if decoder.Err() != nil {
		return 0, false
	}
	return features, known
}
