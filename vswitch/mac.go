package vswitch

import (
	"fmt"
	"net"
)

// A MAC is an Ethernet address. It is an array, so it can be part of a map key.
type MAC [6]byte

// ParseMAC reads an Ethernet address in any form that net.ParseMAC takes.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, fmt.Errorf("parsing MAC address: %w", err)
	}
	if len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("parsing MAC address %s: has %d bytes, want 6", s, len(hw))
	}
	return MAC(hw), nil
}

// String gives the address as six hexadecimal pairs with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Group says whether the address is broadcast or multicast.
func (m MAC) Group() bool { return m[0]&1 != 0 }

// MarshalText makes the address readable in JSON.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (m *MAC) UnmarshalText(b []byte) (err error) {
	*m, err = ParseMAC(string(b))
	return err
}
