// Package guestpath measures what a frame costs inside a guest: forwarded and dropped by
// tapswitch-guest's programs, by the kernel's stack, by tc and by nftables. A veth stands
// for the virtio_net that frames come by, a tap for the one that they leave by.
//
// The cost is the CPU time of the thread that plays the NIC's interrupt. It needs root,
// two CPUs and Linux 6.6 (tcx), and is to be run in a network namespace of its own.
package guestpath
