// Package matrix sends every kind of work that a guest or a NIC may leave to the
// host (checksums, segmentation of TCP, of UDP and inside a tunnel) by every way
// through the switch: by the plain bridge, by tcx and by XDP, into receivers that
// take offloads and into such that don't. What comes out must be what went in:
// the same payload, in packets whose checksums are right.
package matrix
