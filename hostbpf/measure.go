package hostbpf

import "github.com/cilium/ebpf"

// UplinkRxXDP gives the program at the XDP ingress of uplinks, for measuring it.
func (d *Datapath) UplinkRxXDP() *ebpf.Program { return d.programs.UplinkRxXdp }

// GuestRx gives the program at the tc ingress of guest ports, for measuring it.
func (d *Datapath) GuestRx() *ebpf.Program { return d.programs.GuestRx }

// UplinkRx gives the program at the tc ingress of uplinks, for measuring it.
func (d *Datapath) UplinkRx() *ebpf.Program { return d.programs.UplinkRx }

// Maps gives the datapath's maps by name, for measuring them.
func (d *Datapath) Maps() map[string]*ebpf.Map { return d.maps.byName() }
