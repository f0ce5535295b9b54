package lab

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// Offload is something that a device does in the stack's place, as ethtool -K
// switches it.
type Offload string

// The offloads.
const (
	TxChecksum Offload = "tx"
	TSO        Offload = "tso"
	GSO        Offload = "gso"
	GRO        Offload = "gro"
	RxVLAN     Offload = "rxvlan" // takes tags out of frames
	TxVLAN     Offload = "txvlan" // puts them in
)

// features are the kernel's names of what each offload consists of. A device
// need not have all of them.
var features = map[Offload][]string{
	TxChecksum: {"tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"},
	TSO:        {"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation"},
	GSO:        {"tx-generic-segmentation"},
	GRO:        {"rx-gro"},
	RxVLAN:     {"rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"},
	TxVLAN:     {"tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"},
}

// SetOffload switches an offload of a device on or off. TSO needs TxChecksum;
// the kernel takes it away without it.
func (n *Node) SetOffload(dev string, o Offload, on bool) error {
	err := n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		has, err := e.FeaturesWithState(dev)
		if err != nil {
			return err
		}
		change := map[string]bool{}
		for _, f := range features[o] {
			if s, ok := has[f]; ok && s.Available && !s.NeverChanged {
				change[f] = on
			}
		}
		return e.Change(dev, change)
	})
	if err != nil {
		return fmt.Errorf("switching %s of %s in %s: %w", o, dev, n.name, err)
	}
	return nil
}
