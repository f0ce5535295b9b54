package libvirt

import (
	"encoding/xml"
	"fmt"

	"libvirt.org/go/libvirtxml"
)

// A Network is one of libvirt's, as far as it tells where its interfaces are.
type Network struct {
	Name    string
	Forward string // mode of <forward>: nat, route, open, bridge, private, …; empty for an isolated network
	Bridge  string // empty if interfaces are on none
	// VirtualPort is the type of <virtualport>, like "openvswitch".
	VirtualPort string
	// MACTableManager is "libvirt" if libvirt writes the bridge's forwarding table
	// instead of the kernel, which shows there.
	MACTableManager string
	Groups          []PortGroup
}

// A PortGroup is a class of a network's interfaces.
type PortGroup struct {
	Name        string
	Default     bool
	VirtualPort string
}

type networkXML struct {
	XMLName     xml.Name                   `xml:"network"`
	Name        string                     `xml:"name"`
	Forward     *libvirtxml.NetworkForward `xml:"forward"`
	Bridge      *libvirtxml.NetworkBridge  `xml:"bridge"`
	VirtualPort virtualPortXML             `xml:"virtualport"`
	Groups      []struct {
		Name        string         `xml:"name,attr"`
		Default     string         `xml:"default,attr"`
		VirtualPort virtualPortXML `xml:"virtualport"`
	} `xml:"portgroup"`
}

type virtualPortXML struct {
	Type string `xml:"type,attr"`
}

// ParseNetwork reads a network's XML, of at most MaxXML bytes.
func ParseNetwork(text []byte) (Network, error) {
	if len(text) > MaxXML {
		return Network{}, fmt.Errorf("reading network XML: has %d bytes, want at most %d", len(text), MaxXML)
	}
	var parsed networkXML
	if err := decode(text, &parsed); err != nil {
		return Network{}, fmt.Errorf("reading network XML: %w", err)
	}
	return parsed.parse(), nil
}

func (x *networkXML) parse() Network {
	n := Network{Name: x.Name, VirtualPort: x.VirtualPort.Type}
	if f := x.Forward; f != nil {
		n.Forward = f.Mode
		if n.Forward == "" {
			n.Forward = "nat"
		}
	}
	if b := x.Bridge; b != nil {
		n.Bridge, n.MACTableManager = b.Name, b.MACTableManager
	}
	for _, g := range x.Groups {
		n.Groups = append(n.Groups, PortGroup{Name: g.Name, Default: g.Default == "yes", VirtualPort: g.VirtualPort.Type})
	}
	return n
}

// On gives the interface of a definition as it is when its domain runs on the
// network.
func (n Interface) On(w Network) Interface {
	if n.VirtualPort == "" {
		n.VirtualPort = w.VirtualPort
		for _, g := range w.Groups {
			if g.VirtualPort != "" && (g.Name == n.PortGroup || g.Default && n.PortGroup == "") {
				n.VirtualPort = g.VirtualPort
			}
		}
	}
	switch {
	case w.Forward == "hostdev":
		n.Type = "hostdev"
	case w.Forward == "private" || w.Forward == "vepa" || w.Forward == "passthrough" || w.Forward == "bridge" && w.Bridge == "":
		n.Type = "direct"
	default:
		n.Bridge = w.Bridge
	}
	return n
}

// Routed says whether the host routes between the network and the outside, so that
// only frames between its guests are bridged.
func (w Network) Routed() bool {
	return w.Forward == "nat" || w.Forward == "route" || w.Forward == "open"
}
