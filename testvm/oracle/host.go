package oracle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

var nicMAC = mac(lab.NICMAC)

// A host is a bridge with ports that the test drives.
type host struct {
	name  string
	lab   *lab.Lab
	ports []*port // by number; nil: not there
	// stack has what the host's own stack gets by the bridge device, and local
	// what it gets by the ports, which is what the bridge doesn't forward.
	stack   *socket
	local   *inbox
	sockets []*socket
	locals  []*socket // of local, which are drained: no mark comes there
	round   uint32
	// aware says that the bridge is VLAN-aware, and tpid of what kind its tags are, if
	// it ever is; 0 if not.
	aware    bool
	tpid     uint16
	patience time.Duration
	// noFlood keeps frames for unknown addresses from the ports.
	noFlood bool
}

// ageing of learned addresses. The fast path has them refreshed every 32nd part
// of it, and the test lets none be silent for so long.
const ageing = time.Minute

// vlanAgeing is ageing where addresses are known in several VLANs, in some of which
// they speak seldom.
const vlanAgeing = 10 * time.Minute

// ringLength is how many frames wait in a tap, more than a batch makes.
const ringLength = 8192

// localTypes are the types of frames that the host is watched for receiving by a
// port itself: those that the test gives to link-local addresses.
var localTypes = []uint16{unix.ETH_P_802_2, unix.ETH_P_LLDP, unix.ETH_P_IP, 0x88b6}

func newHost(name string, o Options) (*host, error) {
	options := lab.Options{
		MTU: o.uplinkMTU(), AgeingTime: ageing, NoBridgeNetfilter: true, NoHostAddr: true, VLANFiltering: o.VLANs,
	}
	if o.VLANs {
		options.AgeingTime = vlanAgeing
	}
	l, err := lab.New(options)
	if err != nil {
		return nil, err
	}
	h := &host{name: name, lab: l, aware: o.VLANs, local: newInbox(), ports: make([]*port, len(specs))}
	if h.patience = o.Patience; h.patience == 0 {
		h.patience = 20 * time.Second
	}
	if err := h.build(o.Snooping); err != nil {
		return nil, errors.Join(fmt.Errorf("building the %s host: %w", name, err), h.close())
	}
	return h, nil
}

func (h *host) build(snooping bool) error {
	if err := h.silence(snooping); err != nil {
		return err
	}
	if err := h.openSockets(); err != nil {
		return err
	}
	if h.aware {
		h.tpid = unix.ETH_P_8021Q
		if err := h.setVLANs(theBridge, inManagement); err != nil {
			return err
		}
	} else if err := h.setDefaultPVID(0); err != nil { // no entries in VLANs that count for nothing
		return err
	}
	for i := range specs {
		if err := h.plug(i); err != nil {
			return err
		}
	}
	return nil
}

// inManagement makes a member of the management VLAN.
var inManagement = vlanRange{First: management, Last: management}

// silence keeps both stacks from sending frames of their own.
func (h *host) silence(snooping bool) error {
	for _, n := range []*lab.Node{h.lab.Wire, h.lab.Host} {
		for _, conf := range []string{"all", "default"} {
			if err := n.SetSysctl("net/ipv6/conf/"+conf+"/disable_ipv6", "1"); err != nil {
				return err
			}
		}
	}
	wire, err := h.lab.Wire.Link(lab.WireDev)
	if err != nil {
		return err
	}
	addrs, err := h.lab.Wire.Netlink().AddrList(wire, unix.AF_INET)
	if err != nil {
		return fmt.Errorf("listing the wire's addresses: %w", err)
	}
	for _, a := range addrs {
		if err := h.lab.Wire.Netlink().AddrDel(wire, &a); err != nil {
			return fmt.Errorf("removing %s from the wire: %w", a, err)
		}
	}
	return h.setSnooping(snooping)
}

// setSnooping has the bridge find out where the members of groups are, or not.
// It asks for them itself: without anybody who does, it would flood all groups.
func (h *host) setSnooping(on bool) error {
	if !on {
		return h.setBridge(nl.IFLA_BR_MCAST_SNOOPING, nl.Uint8Attr(0))
	}
	const tenth = 10 // of a second, until it takes those who have not answered for none
	return errors.Join(
		h.setBridge(nl.IFLA_BR_MCAST_QUERY_RESPONSE_INTVL, nl.Uint64Attr(tenth)),
		h.setBridge(nl.IFLA_BR_MCAST_QUERIER, nl.Uint8Attr(1)),
		h.setBridge(nl.IFLA_BR_MCAST_SNOOPING, nl.Uint8Attr(1)))
}

// setBridge sets an attribute of the bridge.
func (h *host) setBridge(attr int, value []byte) error {
	index, err := h.lab.Host.Ifindex(lab.BridgeDev)
	if err != nil {
		return err
	}
	err = h.lab.Host.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = int32(index)
		req.AddData(msg)
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
		info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(attr, value)
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("setting attribute %d of %s: %w", attr, lab.BridgeDev, err)
	}
	return nil
}

func (h *host) openSockets() error {
	bridge, err := h.lab.Host.Ifindex(lab.BridgeDev)
	if err != nil {
		return err
	}
	wire, err := h.lab.Wire.Ifindex(lab.WireDev)
	if err != nil {
		return err
	}
	nic, err := h.lab.Host.Ifindex(lab.NIC)
	if err != nil {
		return err
	}
	s, err := listen(h.lab.Host, bridge, unix.ETH_P_ALL, false, newInbox())
	if err != nil {
		return err
	}
	h.stack = s
	h.sockets = append(h.sockets, s)
	for _, t := range localTypes {
		s, err := listen(h.lab.Host, 0, t, false, h.local)
		if err != nil {
			return err
		}
		s.not = bridge
		h.sockets, h.locals = append(h.sockets, s), append(h.locals, s)
	}
	p := &port{spec: specs[uplink], ifindex: nic}
	if p.wire, err = listen(h.lab.Wire, wire, unix.ETH_P_ALL, true, newInbox()); err != nil {
		return err
	}
	p.feed = p.wire.feed
	h.sockets = append(h.sockets, p.wire)
	h.ports[uplink] = p
	return nil
}

// plug adds a port, of which the uplink is there already, and puts it into VLANs
// before it comes up.
func (h *host) plug(number int, vlans ...vlanRange) error {
	if number != uplink {
		p, err := openTap(h.lab.Host, specs[number])
		if err != nil {
			return err
		}
		h.ports[number] = p
		link, err := h.lab.Host.Link(p.spec.name)
		if err != nil {
			return err
		}
		p.ifindex = link.Attrs().Index
		own, k := portMAC(number), h.lab.Host.Netlink()
		if err := errors.Join(
			k.LinkSetHardwareAddr(link, own[:]),
			k.LinkSetMTU(link, p.spec.mtu),
			k.LinkSetTxQLen(link, ringLength),
		); err != nil {
			return fmt.Errorf("preparing %s: %w", p.spec.name, err)
		}
		if h.noFlood || h.tpid != 0 {
			if err := h.enslave(link); err != nil { // still down
				return err
			}
		}
		if h.noFlood {
			if err := h.setSetting(number, flood, false); err != nil {
				return err
			}
		}
	}
	if h.tpid != 0 {
		if err := h.setVLANs(number, inManagement); err != nil {
			return err
		}
		if err := h.setStatic(markMAC(number), number, 0); err != nil { // in few VLANs yet
			return err
		}
	}
	for _, r := range vlans {
		if err := h.setVLANs(number, r); err != nil {
			return err
		}
	}
	if number != uplink {
		if err := h.lab.Plug(specs[number].name); err != nil {
			return err
		}
	}
	if h.tpid == 0 {
		if err := h.setStatic(markMAC(number), number, 0); err != nil {
			return err
		}
	}
	return h.awaitRunning(number)
}

func (h *host) enslave(link netlink.Link) error {
	bridge, err := h.lab.Host.Link(lab.BridgeDev)
	if err != nil {
		return err
	}
	if err := h.lab.Host.Netlink().LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("making %s a port: %w", link.Attrs().Name, err)
	}
	return nil
}

// unplug takes a guest's tap away.
func (h *host) unplug(ctx context.Context, number int) error {
	p := h.ports[number]
	h.ports[number] = nil
	if err := p.close(); err != nil {
		return err
	}
	return h.lab.Host.WaitGone(ctx, p.ifindex)
}

func (h *host) awaitRunning(number int) error {
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	if err := h.lab.Host.WaitRunning(ctx, specs[number].name); err != nil || number != uplink {
		return err
	}
	return h.lab.Wire.WaitRunning(ctx, lab.WireDev)
}

// setUp brings a port down, or up again.
func (h *host) setUp(number int, up bool) error {
	link, err := h.lab.Host.Link(specs[number].name)
	if err != nil {
		return err
	}
	if up {
		if err := h.lab.Host.Netlink().LinkSetUp(link); err != nil {
			return fmt.Errorf("bringing %s up: %w", specs[number].name, err)
		}
		return h.awaitRunning(number)
	}
	if err := h.lab.Host.Netlink().LinkSetDown(link); err != nil {
		return fmt.Errorf("bringing %s down: %w", specs[number].name, err)
	}
	return nil
}

func (h *host) setMTU(number, mtu int) error {
	link, err := h.lab.Host.Link(specs[number].name)
	if err != nil {
		return err
	}
	if err := h.lab.Host.Netlink().LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("setting the MTU of %s: %w", specs[number].name, err)
	}
	return nil
}

// A setting is a flag of a bridge port that may be changed while frames flow.
type setting int

const (
	isolated setting = iota
	hairpin
	learning
	flood
	settings
)

var settingNames = [...]string{"isolated", "hairpin", "learning", "flood"}

func (f setting) String() string { return settingNames[f] }

func (f setting) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

func (f *setting) UnmarshalText(text []byte) error {
	i := slices.Index(settingNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("there is no setting %q of ports", text)
	}
	*f = setting(i)
	return nil
}

// byDefault is the kernel's own setting.
func (f setting) byDefault() bool { return f == learning || f == flood }

func (h *host) setSetting(number int, f setting, on bool) error {
	link, err := h.lab.Host.Link(specs[number].name)
	if err != nil {
		return err
	}
	k := h.lab.Host.Netlink()
	switch f {
	case isolated:
		err = k.LinkSetIsolated(link, on)
	case hairpin:
		err = k.LinkSetHairpin(link, on)
	case learning:
		err = k.LinkSetLearning(link, on)
	case flood:
		err = k.LinkSetFlood(link, on)
	}
	if err != nil {
		return fmt.Errorf("setting %s of %s to %t: %w", f, specs[number].name, on, err)
	}
	return nil
}

func (h *host) neigh(m mac, number, vlan int) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: h.ports[number].ifindex, Family: unix.AF_BRIDGE, Vlan: vlan,
		State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: net.HardwareAddr(m[:]),
	}
}

// setStatic puts a static entry into the bridge's table, in place of any other. VLAN 0
// stands for a bridge that is not VLAN-aware, and all VLANs of the port.
func (h *host) setStatic(m mac, number, vlan int) error {
	if err := h.lab.Host.Netlink().NeighSet(h.neigh(m, number, vlan)); err != nil {
		return fmt.Errorf("setting %s on %s: %w", m, specs[number].name, err)
	}
	return nil
}

// deleteEntry takes an entry out of the bridge's table, if it is there.
func (h *host) deleteEntry(m mac, number, vlan int) error {
	err := h.lab.Host.Netlink().NeighDel(h.neigh(m, number, vlan))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("deleting %s from %s: %w", m, specs[number].name, err)
	}
	return nil
}

// flush empties the bridge's table of learned entries.
func (h *host) flush() error { return h.setBridge(nl.IFLA_BR_FDB_FLUSH, nil) }

type fdbKey struct {
	mac  mac
	vlan int // 0: of a bridge that is not VLAN-aware
}

func (k fdbKey) String() string {
	if k.vlan == 0 {
		return k.mac.String()
	}
	return fmt.Sprintf("%s in VLAN %d", k.mac, k.vlan)
}

// uses says whether the bridge looks at an entry, as it is set now.
func (h *host) uses(key fdbKey) bool { return (key.vlan != 0) == h.aware }

// fdb gives the bridge's table: the device of each entry, and what kind it is.
func (h *host) fdb() (map[fdbKey]netlink.Neigh, error) {
	bridge, err := h.lab.Host.Ifindex(lab.BridgeDev)
	if err != nil {
		return nil, err
	}
	var entries []netlink.Neigh
	for range 10 {
		entries, err = h.lab.Host.Netlink().NeighList(0, unix.AF_BRIDGE)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the table of the %s host: %w", h.name, err)
	}
	table := map[fdbKey]netlink.Neigh{}
	for _, e := range entries {
		if e.MasterIndex == bridge && e.Flags&netlink.NTF_SELF == 0 && len(e.HardwareAddr) == 6 {
			table[fdbKey{mac(e.HardwareAddr), e.Vlan}] = e
		}
	}
	return table, nil
}

// device names a device of the host.
func (h *host) device(ifindex int) string {
	for _, p := range h.ports {
		if p != nil && p.ifindex == ifindex {
			return p.spec.name
		}
	}
	return lab.BridgeDev
}

// sendMark sends a mark from a port.
func (h *host) sendMark(m mark, to mac) error {
	p := h.ports[m.from]
	f := m.frame(to, markMAC(int(m.from)))
	if h.tpid != 0 {
		f = tagged(f, h.tpid, management)
	}
	taken, err := p.send(&[vnetLen]byte{}, f)
	if err == nil && !taken {
		err = fmt.Errorf("putting the %s into %s: it was refused", m, p.spec.name)
	}
	if err == nil {
		p.hooked++
	}
	return err
}

// barrier waits until all frames sent so far have come out. reach says by which
// ways frames can go.
func (h *host) barrier(reach func(from, to int) bool) error {
	h.round++
	var atStack []mark
	at := make([][]mark, len(h.ports))
	for from := range h.ports {
		if !reach(from, from) {
			continue
		}
		for to := range h.ports {
			if to != from && reach(from, to) {
				m := mark{round: h.round, from: uint8(from)}
				if err := h.sendMark(m, markMAC(to)); err != nil {
					return err
				}
				at[to] = append(at[to], m, mark{round: h.round, from: uint8(from), flood: true})
			}
		}
		m := mark{round: h.round, from: uint8(from), flood: true}
		if err := h.sendMark(m, broadcast); err != nil {
			return err
		}
		atStack = append(atStack, m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	if err := h.stack.await(ctx, atStack); err != nil {
		return fmt.Errorf("at the stack of the %s host: %w", h.name, err)
	}
	for to, marks := range at {
		if len(marks) == 0 {
			continue
		}
		if err := h.ports[to].await(ctx, marks); err != nil {
			return fmt.Errorf("at %s of the %s host: %w", specs[to].name, h.name, err)
		}
	}
	return nil
}

// uplinkBarrier waits until the bridge has seen all frames from the wire. Those
// from taps it has seen when the write returns.
func (h *host) uplinkBarrier() error {
	h.round++
	m := mark{round: h.round, from: uplink, flood: true}
	if err := h.sendMark(m, broadcast); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	if err := h.stack.await(ctx, []mark{m}); err != nil {
		return fmt.Errorf("at the stack of the %s host: %w", h.name, err)
	}
	return nil
}

// takeLocal takes what the host's own stack got by the ports.
func (h *host) takeLocal() ([]Output, error) {
	for _, s := range h.locals {
		if err := s.drain(); err != nil {
			return nil, fmt.Errorf("receiving what the ports of the %s host don't forward: %w", h.name, err)
		}
	}
	return h.local.take(), nil
}

// full gives an error if a socket could not take all frames.
func (h *host) full() error {
	for _, s := range h.sockets {
		if n, err := s.dropped(); err != nil || n > 0 {
			return fmt.Errorf("a packet socket of the %s host dropped %d frames: %w", h.name, n, err)
		}
	}
	return nil
}

func (h *host) close() error {
	var errs []error
	for _, p := range h.ports {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	for _, s := range h.sockets {
		errs = append(errs, s.close())
	}
	errs = append(errs, h.lab.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the %s host: %w", h.name, err)
	}
	return nil
}

// refused says whether a device didn't take a frame because of what the frame
// or the device is.
func refused(err error) bool {
	for _, e := range []error{unix.EINVAL, unix.EIO, unix.EMSGSIZE, unix.ENETDOWN, unix.ENOBUFS, unix.ENXIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return strings.Contains(err.Error(), "file already closed")
}
