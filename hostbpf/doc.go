// Package hostbpf is the datapath on the host: BPF programs at the ingress of
// uplinks and guest ports, the maps that they share, and all that is needed to
// load, pin, attach, adopt and read them.
//
// It does what package vswitch plans and has no opinion of its own. What it
// made stays in force by its pins when the process ends, and stops acting by
// itself once nobody renews the deadline.
//
// The programs need Linux 5.10. Before 5.13 losses are not counted, before 5.18 XDP
// knows frames in one buffer only, and before 6.6 the tc hooks are clsact filters
// instead of tcx.
package hostbpf
