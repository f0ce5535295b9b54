package hostbpf

import "github.com/cilium/ebpf"

// UplinkRxXDP gives the program at the XDP ingress of uplinks, for measuring it.
func (d *Datapath) UplinkRxXDP() *ebpf.Program { return d.programs.UplinkRxXdp }

// Maps gives the datapath's maps by name, for measuring them.
func (d *Datapath) Maps() map[string]*ebpf.Map { return d.maps.byName() }
