package oracle

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// A step is done to both hosts: a frame that goes into a port of each, or a change.
type step struct {
	Frame  *frame  `json:"frame,omitempty"`
	Change *change `json:"change,omitempty"`
}

func (s step) String() string {
	if s.Frame != nil && len(s.Frame.data) < ethLen {
		return s.Frame.String()
	}
	if s.Frame != nil {
		return fmt.Sprintf("%s → %s %v", source(s.Frame.data), destination(s.Frame.data), s.Frame)
	}
	return s.Change.String()
}

// A change is what is done beside sending frames: one of a kind, with what that kind
// needs to know.
type change struct {
	Do      string     `json:"do"`
	Port    portNumber `json:"port,omitzero"`
	MAC     *mac       `json:"mac,omitempty"`
	VLAN    uint16     `json:"vlan,omitempty"`
	Setting *setting   `json:"setting,omitempty"`
	On      bool       `json:"on,omitempty"`
	MTU     int        `json:"mtu,omitempty"`
	// VLANs of the port: those that change, or those that it is made with.
	VLANs []vlanRange `json:"vlans,omitempty"`
}

func (c *change) UnmarshalJSON(text []byte) error {
	type plain change
	p := plain{Port: theBridge}
	err := json.Unmarshal(text, &p)
	*c = change(p)
	return err
}

func (c *change) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return strings.NewReplacer(`"`, "", ",", ", ", "{", "", "}", "").Replace(string(text))
}

// A portNumber is written as the port's name.
type portNumber int

// theBridge stands for the bridge itself in place of a port's number.
const theBridge = -1

func (n portNumber) String() string {
	if n == theBridge {
		return "the bridge"
	}
	return specs[n].name
}

// IsZero says that a change names no port.
func (n portNumber) IsZero() bool { return n == theBridge }

func (n portNumber) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

func (n *portNumber) UnmarshalText(text []byte) error {
	for *n = theBridge; int(*n) < len(specs); *n++ {
		if n.String() == string(text) {
			return nil
		}
	}
	return fmt.Errorf("there is no port %q", text)
}

// frameText is a frame as a case's file has it.
type frameText struct {
	Kind   string     `json:"kind"`
	Port   portNumber `json:"port"`
	Header string     `json:"header,omitempty"` // empty: all zero
	Data   string     `json:"data"`
}

func (f *frame) MarshalJSON() ([]byte, error) {
	t := frameText{Kind: f.kind, Port: portNumber(f.port), Data: hex.EncodeToString(f.data)}
	if f.header != [vnetLen]byte{} {
		t.Header = hex.EncodeToString(f.header[:])
	}
	return json.Marshal(t)
}

func (f *frame) UnmarshalJSON(text []byte) error {
	var t frameText
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	data, err := hex.DecodeString(t.Data)
	if err != nil {
		return fmt.Errorf("reading the bytes of a frame: %w", err)
	}
	*f = frame{kind: t.Kind, port: int(t.Port), data: data}
	header, err := hex.DecodeString(t.Header)
	if err != nil {
		return fmt.Errorf("reading the header of a frame: %w", err)
	}
	if len(header) > vnetLen || t.Port < 0 {
		return fmt.Errorf("a frame into %s can't have the header %s", t.Port, t.Header)
	}
	copy(f.header[:], header)
	return nil
}
