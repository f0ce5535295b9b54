package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
)

// The drivers whose hooks matter.
const (
	HookQEMU    = "qemu"
	HookNetwork = "network"
)

// A HookCall is what libvirt tells a hook script by its arguments. It must not be
// answered by asking libvirt, which waits for the script.
type HookCall struct {
	Driver                         string // HookQEMU or HookNetwork
	Object                         string // name of the domain or network
	Operation, SubOperation, Extra string
}

// A HookSubject is what a hook is about: a domain, a network, or a network with
// the interface that has come or goes.
type HookSubject struct {
	Domain  *Domain
	Network *Network
}

// ParseHook reads the XML that libvirt gives a hook script on its standard input,
// of at most MaxXML bytes. Some operations come without any.
func (c HookCall) ParseHook(text []byte) (s HookSubject, err error) {
	switch c.Driver {
	case HookQEMU:
		d, err := ParseDomain(text)
		if err != nil {
			return s, err
		}
		s.Domain = &d
	case HookNetwork:
		if len(text) > MaxXML {
			return s, fmt.Errorf("reading a network hook's XML: has %d bytes, want at most %d", len(text), MaxXML)
		}
		var parsed struct {
			XMLName xml.Name    `xml:"hookData"`
			Network *networkXML `xml:"network"`
		}
		if err := decode(text, &parsed); err != nil {
			return s, fmt.Errorf("reading a network hook's XML: %w", err)
		}
		if parsed.Network == nil {
			return s, errors.New("reading a network hook's XML: there is no network in it")
		}
		n := parsed.Network.parse()
		s.Network = &n
	default:
		return s, fmt.Errorf("reading a hook's XML: unknown driver %q", c.Driver)
	}
	return s, nil
}
