// Package hostbpf is the datapath on the host: BPF programs at the ingress of
// uplinks and guest ports, the maps that they share, and all that is needed to
// load, pin, attach, adopt and read them.
//
// It does what package vswitch plans and has no opinion of its own. What it
// made stays in force by its pins when the process ends, and stops acting by
// itself once nobody renews the deadline.
//
// The programs need Linux 5.18 (frames in several buffers). Guest ports are
// attached by tcx from Linux 6.6 on and by a clsact filter before.
package hostbpf
