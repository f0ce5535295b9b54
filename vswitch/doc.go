// Package vswitch says what the switch is: ports, bridges, forwarding entries,
// verdicts, reasons to hold a port back, and the reconciler that turns what was
// observed into what the datapath should hold.
//
// It knows nothing of BPF, netlink or libvirt, so all of it can be tested
// without privileges. The Linux bridge is the authority for everything here;
// the package only repeats what the bridge would do.
package vswitch
