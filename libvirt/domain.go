// Package libvirt reads what libvirt knows of virtual machines, as far as it
// matters to the switch under them.
package libvirt

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// MaxXML is how long a domain's XML may be, in bytes. libvirt's own messages take
// 32 MB, but a machine with a hundred disks is described in 100 KB.
const MaxXML = 1 << 20

// A Domain is a virtual machine as libvirt has it now.
type Domain struct {
	UUID string // canonical, lower case; empty in a definition that has none yet
	Name string // for people
	// Running says that it has been started, Paused that its CPUs are stopped. XML
	// tells the former alone.
	Running, Paused bool
	VCPUs           int // most that it can have
	Interfaces      []Interface
}

// ParseDomain reads a domain's XML, live or as it is defined. It bounds what it
// takes by MaxXML.
func ParseDomain(text []byte) (Domain, error) {
	if len(text) > MaxXML {
		return Domain{}, fmt.Errorf("reading domain XML: has %d bytes, want at most %d", len(text), MaxXML)
	}
	// Nothing but this is decoded, so that a device that a newer libvirt describes
	// in a new way does not hide the interfaces.
	var parsed struct {
		XMLName    xml.Name              `xml:"domain"`
		ID         string                `xml:"id,attr"`
		UUID       string                `xml:"uuid"`
		Name       string                `xml:"name"`
		VCPU       libvirtxml.DomainVCPU `xml:"vcpu"`
		Interfaces []interfaceXML        `xml:"devices>interface"`
	}
	if err := decode(text, &parsed); err != nil {
		return Domain{}, fmt.Errorf("reading domain XML: %w", err)
	}
	d := Domain{
		Name:    parsed.Name,
		Running: parsed.ID != "",
		VCPUs:   max(int(parsed.VCPU.Value), 1),
	}
	if d.Name == "" {
		return Domain{}, errors.New("reading domain XML: the domain has no name")
	}
	if parsed.UUID != "" {
		var err error
		if d.UUID, err = canonicalUUID(parsed.UUID); err != nil {
			return Domain{}, fmt.Errorf("reading domain XML: %w", err)
		}
	}
	for i := range parsed.Interfaces {
		n, err := parsed.Interfaces[i].parse()
		if err != nil {
			return Domain{}, fmt.Errorf("reading domain XML: interface %d of %s: %w", i+1, d.Name, err)
		}
		d.Interfaces = append(d.Interfaces, n)
	}
	return d, nil
}

// decode reads the one element that text consists of.
func decode(text []byte, v any) error {
	d := xml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(v); err != nil {
		return err
	}
	for {
		switch token, err := d.Token(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		default:
			if _, ok := token.(xml.StartElement); ok {
				return errors.New("another element follows the first")
			}
		}
	}
}

// canonicalUUID gives a UUID in the form in which libvirt writes it.
func canonicalUUID(s string) (string, error) {
	digits := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(s), "-", ""))
	if len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%s is no UUID", strconv.Quote(s))
	}
	return strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-"), nil
}
