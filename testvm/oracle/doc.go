// Package oracle compares two equal hosts: the bridge of one works alone, that
// of the other is accelerated by a real tapswitchd. The same random frames go
// into the same ports of both, in the same order; the frames that come out of
// every port, and those that reach the host's own stack, must be the same, byte
// for byte, with their virtio-net headers.
//
// What a fast path may not change is compared; what it may is not:
//
//   - The order of two frames out of one port, unless both came in by one port,
//     untagged, between the same two addresses. A frame that the fast path sends
//     may overtake one that it leaves to the bridge.
//   - What happens between a change that takes a station from where it was (it
//     moves, its entry is deleted, its port goes down or away) and the moment at
//     which the daemon has followed, some milliseconds later. The bridge sends
//     frames for the station on by the new state at once, the fast path by the
//     old one until then; and a station that speaks on its old port again within
//     that time is not moved back, as the bridge doesn't see it. The oracle waits
//     for the datapath after such changes alone. After all others (a new
//     station, a new port, a port that comes up) it doesn't, because the fast
//     path then leaves the frames to the bridge.
//   - What a refresh brings back. The daemon tells the bridge that addresses are
//     in use whose frames it doesn't see; one that was deleted or has moved in the
//     same moment returns. The oracle deletes the former again and counts it, and
//     waits until the daemon has put the latter right.
//
// All that is done to the hosts is a list of steps, frames and changes, of which the
// first make the configuration. Where the hosts differ, the list is made as short as it
// can be and kept in testdata, from where TestKept does it again. Steps that a shorter
// list can't do (a port is plugged in that is there) are left out.
//
// Many frames go in before the hosts are looked at, and nobody reads what comes out
// until then: that is what makes it fast, above all in an emulated machine. Frames that
// a pending change is about (of a station that has just moved) wait until the end of
// such a batch.
//
// With VLANs, marks travel in a VLAN of their own, which all ports are in. When VLAN
// filtering is switched, the oracle empties both tables: what refreshes did to
// entries in VLANs while these meant nothing would count from then on.
//
// Numbers that a kernel draws at random (of IP fragments, into which it segments
// UDP), and frames of its own that tell routers of multicast groups, can't be
// compared.
package oracle
