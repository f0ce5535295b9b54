package vswitch

// A Hook is a place where the datapath meets the frames that come in by a port.
// A frame that it passes at HookXDP comes to HookTC too, merged with others of
// its flow if the device has GRO.
type Hook uint8

// The hooks, numbered as in hostbpf/bpf/tapswitch.h.
const (
	HookTC  Hook = iota // tc ingress
	HookXDP             // native XDP
	NumHooks
)

var hookNames = []string{"tc", "xdp"}

func (h Hook) String() string                { return enumName(hookNames, h) }
func (h Hook) MarshalText() ([]byte, error)  { return []byte(h.String()), nil }
func (h *Hook) UnmarshalText(b []byte) error { return enumParse(hookNames, b, h) }

// Hooks gives all hooks.
func Hooks() []Hook { return []Hook{HookTC, HookXDP} }
