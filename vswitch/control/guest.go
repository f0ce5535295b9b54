package control

import "github.com/tapswitch/tapswitch/vswitch"

// A Guest is the NIC of a virtual machine that a port belongs to, as libvirt tells.
type Guest struct {
	Domain string      `json:"domain"` // its name
	UUID   string      `json:"uuid"`   // of the domain
	Alias  string      `json:"alias"`  // of the NIC in the domain, like "net0"
	MAC    vswitch.MAC `json:"mac"`    // the guest's own address; the port has another
	Model  string      `json:"model"`  // of the NIC: virtio, e1000e …
	Queues int         `json:"queues"` // pairs that it may use
	// Paused says that its CPUs stand still, so it takes no frames.
	Paused bool `json:"paused"`
}

// A Portless is the NIC of a virtual machine that is no port of a bridge here.
type Portless struct {
	Domain string      `json:"domain"` // its name
	UUID   string      `json:"uuid"`   // of the domain
	Alias  string      `json:"alias"`  // of the NIC in the domain
	MAC    vswitch.MAC `json:"mac"`    // the guest's own address
	Type   string      `json:"type"`   // of libvirt's <interface>
	Why    string      `json:"why"`    // it is none
}
