package vswitch

// CarrierMembers is how many devices of one bond XDP takes frames from; those of more
// go by tc. An aggregate by LACP has at most 8 active ones.
const CarrierMembers = 8

// A Carrier says where XDP meets an uplink's frames, if that is not at the port's own
// device alone: those of a bond at each of its devices, and those of a VLAN device
// at the device below, with their tag. The zero value is a port that has its own.
type Carrier struct {
	Ifindex int // of the device that gets the XDP program
	// Members are the devices, by ascending ifindex, as which the program sees the
	// frames.
	Members [CarrierMembers]int
	TPID    uint16 // of the tag; 0: the frames are those that no VLAN device takes
	VLAN    VLAN
}

// XDPDevice gives the ifindex of the device that gets the port's XDP program.
func (c PortConfig) XDPDevice() int {
	if c.Carrier.Ifindex != 0 {
		return c.Carrier.Ifindex
	}
	return c.Ifindex
}
