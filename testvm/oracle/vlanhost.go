package oracle

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// setVLANs changes the VLANs of a port, or of the bridge itself.
func (h *host) setVLANs(number int, r vlanRange) error {
	self, name := number == theBridge, lab.BridgeDev
	if !self {
		name = specs[number].name
	}
	link, err := h.lab.Host.Link(name)
	if err != nil {
		return err
	}
	k := h.lab.Host.Netlink()
	change := k.BridgeVlanAddRange
	if r.Remove {
		change = k.BridgeVlanDelRange
	}
	if r.First == r.Last {
		one := k.BridgeVlanAdd
		if r.Remove {
			one = k.BridgeVlanDel
		}
		err = one(link, r.First, r.PVID, r.Untagged, self, !self)
	} else {
		err = change(link, r.First, r.Last, r.PVID, r.Untagged, self, !self)
	}
	if err != nil && !(r.Remove && errors.Is(err, unix.ENOENT)) {
		return fmt.Errorf("changing the VLANs of %s (%s): %w", name, r, err)
	}
	return nil
}

// vlans gives the memberships of the ports, and of the bridge itself.
func (h *host) vlans() (map[int]membership, error) {
	var (
		list map[int32][]*nl.BridgeVlanInfo
		err  error
	)
	for range 10 {
		list, err = h.lab.Host.Netlink().BridgeVlanList()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the VLANs of the %s host: %w", h.name, err)
	}
	bridge, err := h.lab.Host.Ifindex(lab.BridgeDev)
	if err != nil {
		return nil, err
	}
	of := map[int]membership{theBridge: newMembership(list[int32(bridge)])}
	for i, p := range h.ports {
		if p != nil {
			of[i] = newMembership(list[int32(p.ifindex)])
		}
	}
	return of, nil
}

func newMembership(list []*nl.BridgeVlanInfo) membership {
	m := membership{of: map[uint16]bool{}}
	for _, v := range list {
		m.of[v.Vid] = v.EngressUntag()
		if v.PortVID() {
			m.pvid = v.Vid
		}
	}
	return m
}

// setAware has the bridge tell VLANs apart, or not.
func (h *host) setAware(aware bool) error {
	h.aware = aware
	value := uint8(0)
	if aware {
		value = 1
	}
	return h.setBridge(nl.IFLA_BR_VLAN_FILTERING, nl.Uint8Attr(value))
}

// setTPID sets the kind of tags of the bridge.
func (h *host) setTPID(tpid uint16) error {
	h.tpid = tpid
	return h.setBridge(nl.IFLA_BR_VLAN_PROTOCOL, binary.BigEndian.AppendUint16(nil, tpid))
}

// setDefaultPVID sets the VLAN that ports are in at first; 0 is none.
func (h *host) setDefaultPVID(vid uint16) error {
	return h.setBridge(nl.IFLA_BR_VLAN_DEFAULT_PVID, nl.Uint16Attr(vid))
}

// purge empties the bridge's table of all but the host's own addresses, and puts the
// marks' back.
func (h *host) purge() error {
	index, err := h.lab.Host.Ifindex(lab.BridgeDev)
	if err != nil {
		return err
	}
	const (
		bulk         = 0x200 // NLM_F_BULK (Linux 5.19)
		ndmStateMask = 16    // NDA_NDM_STATE_MASK
	)
	err = h.lab.Host.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_DELNEIGH, unix.NLM_F_ACK|bulk)
		req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index), Flags: netlink.NTF_SELF})
		req.AddData(nl.NewRtAttr(ndmStateMask, nl.Uint16Attr(netlink.NUD_PERMANENT)))
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("emptying the table of the %s host: %w", h.name, err)
	}
	vlan := 0
	if h.aware {
		vlan = management
	}
	for i, p := range h.ports {
		if p != nil {
			if err := h.setStatic(markMAC(i), i, vlan); err != nil {
				return err
			}
		}
	}
	return nil
}
