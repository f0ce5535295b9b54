package libvirt

import (
	"net/netip"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A FilterRef names the nwfilter that guards an interface.
type FilterRef struct {
	Name string `json:"name"`
	// Parameters are its variables; one that is named more than once is a list.
	Parameters map[string][]string `json:"parameters,omitempty"`
}

func filterRef(x *libvirtxml.DomainInterfaceFilterRef) *FilterRef {
	if x == nil {
		return nil
	}
	f := &FilterRef{Name: x.Filter}
	for _, p := range x.Parameters {
		if f.Parameters == nil {
			f.Parameters = map[string][]string{}
		}
		f.Parameters[p.Name] = append(f.Parameters[p.Name], p.Value)
	}
	return f
}

// Kinds are sets of frames, told apart by their EtherType.
type Kinds uint8

// The kinds.
const (
	IPv4 Kinds = 1 << iota
	IPv6
	ARP
	RARP
	OtherKinds
	AllKinds = IPv4 | IPv6 | ARP | RARP | OtherKinds
)

// A FrameRule says which unicast frames of one direction a filter is sure to let
// through. What it does not allow is not forbidden: it is for the filter itself to
// judge, so it goes by the bridge.
type FrameRule struct {
	Kinds     Kinds
	SourceMAC *vswitch.MAC // nil for any
	// IPv4Sources and IPv6Sources bound packets of their kind; nil for any.
	IPv4Sources, IPv6Sources []netip.Addr
	// ARPSenderMAC and ARPSenderIPs bound what is in an ARP message; nil for any.
	ARPSenderMAC *vswitch.MAC
	ARPSenderIPs []netip.Addr
}

// open says whether the rule allows all frames.
func (r FrameRule) open() bool {
	return r.Kinds == AllKinds && r.SourceMAC == nil && r.IPv4Sources == nil && r.IPv6Sources == nil && r.ARPSenderMAC == nil && r.ARPSenderIPs == nil
}

// FrameRules are a filter's rules for both directions.
type FrameRules struct {
	FromGuest, ToGuest FrameRule
}

// Direction gives the directions of the port in which frames have to be judged.
func (r FrameRules) Direction() (d vswitch.Direction) {
	if !r.FromGuest.open() {
		d |= vswitch.In
	}
	if !r.ToGuest.open() {
		d |= vswitch.Out
	}
	return d
}

// FrameRules gives the rules of a filter that libvirt brings along, as libvirt has
// defined it; false for any other. A host may have redefined it: who lets frames
// past the filter by these rules has to compare the definitions first.
func (f FilterRef) FrameRules(mac vswitch.MAC) (FrameRules, bool) {
	open := FrameRule{Kinds: AllKinds}
	r := FrameRules{FromGuest: open, ToGuest: open}
	known := f.apply(f.Name, mac, &r)
	return r, known
}

// apply adds the constraints of the named filter.
func (f FilterRef) apply(name string, mac vswitch.MAC, r *FrameRules) bool {
	from, to := &r.FromGuest, &r.ToGuest
	switch name {
	case "clean-traffic":
		for _, part := range []string{"no-mac-spoofing", "no-ip-spoofing", "no-arp-spoofing", "qemu-announce-self"} {
			f.apply(part, mac, r)
		}
		from.Kinds &= IPv4 | ARP
		to.Kinds &= IPv4 | ARP
	case "no-mac-spoofing":
		from.SourceMAC = &mac
	case "no-ip-spoofing":
		// It lets pass UDP from 0.0.0.0 too, which is DHCP.
		from.IPv4Sources = f.addresses("IP", netip.Addr.Is4)
		if from.IPv4Sources == nil {
			from.Kinds &^= IPv4
		}
	case "no-ipv6-spoofing":
		// It lets pass UDP from link-local addresses too.
		from.IPv6Sources = f.addresses("IPV6", netip.Addr.Is6)
		if from.IPv6Sources == nil {
			from.Kinds &^= IPv6
		}
	case "no-arp-spoofing":
		f.apply("no-arp-mac-spoofing", mac, r)
		f.apply("no-arp-ip-spoofing", mac, r)
	case "no-arp-mac-spoofing":
		from.ARPSenderMAC = &mac
	case "no-arp-ip-spoofing":
		from.ARPSenderIPs = f.addresses("IP", netip.Addr.Is4)
		if from.ARPSenderIPs == nil {
			from.Kinds &^= ARP
		}
	case "qemu-announce-self", "qemu-announce-self-rarp", "no-other-rarp-traffic":
		from.Kinds &^= RARP
		to.Kinds &^= RARP
	case "no-other-l2-traffic":
		from.Kinds, to.Kinds = 0, 0
	case "allow-arp", "allow-ipv4", "allow-ipv6", "allow-incoming-ipv4", "allow-incoming-ipv6",
		"allow-dhcp", "allow-dhcpv6":
		// They stop nothing by themselves.
	case "no-mac-broadcast":
		// It stops no unicast frame.
	default:
		return false
	}
	return true
}

// addresses gives a parameter's addresses; nil if there are none, or any that is
// not understood: libvirt then learns the address by itself, or knows better.
func (f FilterRef) addresses(name string, is func(netip.Addr) bool) (addrs []netip.Addr) {
	for _, text := range f.Parameters[name] {
		a, err := netip.ParseAddr(text)
		if err != nil || !is(a) {
			return nil
		}
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// filterHolds gives the reasons that lie in the interface's filter.
func (n Interface) filterHolds() []vswitch.HoldReason {
	const remedy = "take <filterref> out of the interface if the guest is trusted"
	rules, known := n.Filter.FrameRules(n.MAC)
	if !known {
		return []vswitch.HoldReason{vswitch.Hold(vswitch.HoldFilter, "libvirt's filter %s decides over its frames, and what it says is not known; %s", n.Filter.Name, remedy)}
	}
	d := rules.Direction()
	if d == 0 {
		return nil
	}
	r := vswitch.Hold(vswitch.HoldFilter, "libvirt's filter %s decides over its frames, which the fast path does not check yet; %s", n.Filter.Name, remedy)
	r.Direction = d
	return []vswitch.HoldReason{r}
}
