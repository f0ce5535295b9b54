// Package uplink measures what it costs to bring a frame from a NIC to a guest's
// tap: by the fast path, by the least that XDP needs for it, by tc, and by the
// bridge.
//
// The cost of a frame is the CPU time of the thread that plays the NIC's
// interrupt, up to the tap's queue; the guest's side is read on another CPU. It
// needs root, two CPUs and Linux 6.6 (tcx), and is to be run in a network
// namespace of its own.
package uplink
