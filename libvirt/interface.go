package libvirt

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/tapswitch/tapswitch/vswitch"
)

// An Interface is one NIC of a domain.
type Interface struct {
	Alias  string      `json:"alias"`  // "net0"; empty in a definition
	Type   string      `json:"type"`   // of <interface>: bridge, network, ethernet, direct, hostdev, vhostuser, vdpa, user …
	MAC    vswitch.MAC `json:"mac"`    // the guest's address
	Target string      `json:"target"` // the tap's name now; never a key
	// Bridge is what the tap is a port of, Network the libvirt network that it comes
	// from. A definition that names a network does not tell the bridge.
	Bridge    string `json:"bridge"`
	Network   string `json:"network"`
	PortGroup string `json:"port_group,omitempty"`
	// VirtualPort is the type of <virtualport>, like "openvswitch".
	VirtualPort string `json:"virtual_port"`
	Model       string `json:"model"`  // virtio, e1000e …
	Driver      string `json:"driver"` // "qemu" without vhost; empty for libvirt's choice
	Queues      int    `json:"queues"` // pairs
	LinkDown    bool   `json:"link_down"`
	MTU         int    `json:"mtu"` // bytes; 0 for the bridge's
	// Isolated ports don't reach each other.
	Isolated bool `json:"isolated"`
	// VLANs are the tags that the bridge lets through; Trunk says that they stay on
	// the frames.
	VLANs []uint16 `json:"vlans,omitempty"`
	Trunk bool     `json:"trunk"`
	// TrustRxFilters says that the guest may change its address.
	TrustRxFilters bool `json:"trust_rx_filters"`
	// ToGuest and FromGuest bound the rate, as <inbound> and <outbound>.
	ToGuest   *Limit     `json:"to_guest,omitempty"`
	FromGuest *Limit     `json:"from_guest,omitempty"`
	Filter    *FilterRef `json:"filter,omitempty"`
	// HostOffloads are what the guest may leave to the host, GuestOffloads what the
	// host may leave to the guest.
	HostOffloads  Offloads `json:"host_offloads"`
	GuestOffloads Offloads `json:"guest_offloads"`
}

// A Limit is a rate in KiB per second, and a burst in KiB.
type Limit struct {
	Average int `json:"average"`
	Peak    int `json:"peak,omitempty"`
	Burst   int `json:"burst,omitempty"`
	Floor   int `json:"floor,omitempty"`
}

// Offloads are what one side may leave to the other.
type Offloads struct {
	Checksum bool `json:"csum"`
	GSO      bool `json:"gso"` // of the host alone
	TSO4     bool `json:"tso4"`
	TSO6     bool `json:"tso6"`
	ECN      bool `json:"ecn"`
	UFO      bool `json:"ufo"`
}

// on lists the offloads that are on, by their names in the XML.
func (o Offloads) on() (names []string) {
	for _, f := range []struct {
		name string
		on   bool
	}{{"csum", o.Checksum}, {"gso", o.GSO}, {"tso4", o.TSO4}, {"tso6", o.TSO6}, {"ecn", o.ECN}, {"ufo", o.UFO}} {
		if f.on {
			names = append(names, f.name)
		}
	}
	return names
}

// list joins names for people.
func list(names []string) string { return strings.Join(names, ", ") }

// interfaceXML is an <interface>, with its type, of which libvirtxml keeps only
// what it knows.
type interfaceXML struct {
	libvirtxml.DomainInterface
	kind string
}

// UnmarshalXML reads the element.
func (x *interfaceXML) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	for i, a := range start.Attr {
		if a.Name.Local != "type" {
			continue
		}
		x.kind = a.Value
		// libvirtxml can't read the source of a type that it does not know.
		if !slices.Contains(sourceTypes, x.kind) {
			start.Attr[i].Value = "null"
		}
	}
	return d.DecodeElement(&x.DomainInterface, &start)
}

// sourceTypes are the types whose <source> matters.
var sourceTypes = []string{"bridge", "network"}

func (x *interfaceXML) parse() (n Interface, err error) {
	n = Interface{Type: x.kind, TrustRxFilters: x.TrustGuestRXFilters == "yes", Queues: 1}
	if x.MAC != nil {
		if n.MAC, err = vswitch.ParseMAC(x.MAC.Address); err != nil {
			return n, err
		}
	}
	if x.Alias != nil {
		n.Alias = x.Alias.Name
	}
	if x.Target != nil {
		n.Target = x.Target.Dev
	}
	if s := x.Source; s != nil {
		switch {
		case s.Bridge != nil:
			n.Bridge = s.Bridge.Bridge
		case s.Network != nil:
			n.Network, n.Bridge, n.PortGroup = s.Network.Network, s.Network.Bridge, s.Network.PortGroup
		}
	}
	n.VirtualPort = virtualPort(x.VirtualPort)
	if x.Model != nil {
		n.Model = x.Model.Type
	}
	n.LinkDown = x.Link != nil && x.Link.State == "down"
	if x.MTU != nil {
		n.MTU = int(x.MTU.Size)
	}
	n.Isolated = x.PortOptions != nil && x.PortOptions.Isolated == "yes"
	if x.VLan != nil {
		n.Trunk = x.VLan.Trunk == "yes" || len(x.VLan.Tags) > 1
		for _, tag := range x.VLan.Tags {
			if tag.ID > 4095 {
				return n, fmt.Errorf("VLAN %d: want 0 to 4095", tag.ID)
			}
			n.VLANs = append(n.VLANs, uint16(tag.ID))
		}
	}
	if b := x.Bandwidth; b != nil {
		n.ToGuest, n.FromGuest = limit(b.Inbound), limit(b.Outbound)
	}
	n.Filter = filterRef(x.FilterRef)
	n.HostOffloads = Offloads{Checksum: true, GSO: true, TSO4: true, TSO6: true, ECN: true, UFO: true}
	n.GuestOffloads = Offloads{Checksum: true, TSO4: true, TSO6: true, ECN: true, UFO: true}
	if d := x.DomainInterface.Driver; d != nil {
		n.Driver = d.Name
		n.Queues = max(int(d.Queues), 1)
		if h := d.Host; h != nil {
			n.HostOffloads = Offloads{enabled(h.CSum), enabled(h.GSO), enabled(h.TSO4), enabled(h.TSO6), enabled(h.ECN), enabled(h.UFO)}
		}
		if g := d.Guest; g != nil {
			n.GuestOffloads = Offloads{enabled(g.CSum), false, enabled(g.TSO4), enabled(g.TSO6), enabled(g.ECN), enabled(g.UFO)}
		}
	}
	return n, nil
}

// enabled reads a switch that is on if nothing is said.
func enabled(s string) bool { return s != "off" }

func limit(p *libvirtxml.DomainInterfaceBandwidthParams) *Limit {
	if p == nil {
		return nil
	}
	value := func(v *int) int {
		if v == nil {
			return 0
		}
		return *v
	}
	return &Limit{Average: value(p.Average), Peak: value(p.Peak), Burst: value(p.Burst), Floor: value(p.Floor)}
}

func virtualPort(v *libvirtxml.DomainInterfaceVirtualPort) string {
	if v == nil || v.Params == nil {
		return ""
	}
	switch p := v.Params; {
	case p.OpenVSwitch != nil:
		return "openvswitch"
	case p.MidoNet != nil:
		return "midonet"
	case p.VEPA8021QBG != nil:
		return "802.1Qbg"
	case p.VNTag8011QBH != nil:
		return "802.1Qbh"
	}
	return ""
}
