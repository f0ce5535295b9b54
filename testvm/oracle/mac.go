package oracle

import (
	"fmt"
	"net"
)

type mac [6]byte

func (m mac) String() string { return net.HardwareAddr(m[:]).String() }

func (m mac) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m *mac) UnmarshalText(text []byte) error {
	b, err := net.ParseMAC(string(text))
	if err == nil && len(b) != len(m) {
		err = fmt.Errorf("%q is no Ethernet address", text)
	}
	copy(m[:], b)
	return err
}

func (m mac) group() bool { return m[0]&1 != 0 }

func destination(f []byte) mac { return mac(f[0:6]) }
func source(f []byte) mac      { return mac(f[6:12]) }

var broadcast = mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// portMAC is the address of the tap itself, which is the host's.
func portMAC(number int) mac {
	if number == uplink {
		return nicMAC
	}
	return mac{0xfe, 0x54, 0, 0, 0, byte(number)}
}

// markMAC is the station of a port that sends and receives its marks. It is in
// the bridge's table for good, and nothing else uses it.
func markMAC(number int) mac { return mac{0x02, 'm', 'a', 'r', 'k', byte(number)} }
