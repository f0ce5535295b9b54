package policy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// Attributes that golang.org/x/sys lacks.
const (
	hookDevs     = 4 // NFTA_HOOK_DEVS, Linux 5.5
	deviceName   = 1 // NFTA_DEVICE_NAME
	devicePrefix = 2 // NFTA_DEVICE_PREFIX, Linux 6.17
)

// nfgenmsgLen is the length of struct nfgenmsg, which begins each message.
const nfgenmsgLen = 4

// ingressOfInet is the hook of family inet that belongs to a device.
const ingressOfInet = 5 // NF_INET_INGRESS, Linux 5.10

// answerTime bounds the wait for an answer, which the kernel gives while the
// request is being sent.
const answerTime = 10 * time.Second

// A chain is a hooked chain of nftables.
type chain struct {
	family uint8 // NFPROTO_*
	table  string
	hook   uint32
	effect
	devices []deviceMatch // of a hook that belongs to devices
}

// A deviceMatch is how a chain names a device, or with prefix several.
type deviceMatch struct {
	name   string
	prefix bool
}

func (m deviceMatch) matches(name string) bool {
	return name == m.name || m.prefix && strings.HasPrefix(name, m.name)
}

func (c chain) familyName() string {
	switch c.family {
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	}
	return fmt.Sprintf("of family %d", c.family)
}

func (c chain) onDevices() bool {
	return c.family == unix.NFPROTO_NETDEV || c.family == unix.NFPROTO_INET && c.hook == ingressOfInet
}

// onBridges says whether frames that are bridged meet the chain, given what
// br_netfilter hands over.
func (c chain) onBridges(br calls) bool {
	switch c.hook {
	case unix.NF_INET_PRE_ROUTING, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING:
	default:
		return false
	}
	// Family arp has no forward hook for chains, unlike arptables.
	switch c.family {
	case unix.NFPROTO_BRIDGE:
		return true
	case unix.NFPROTO_INET:
		return br.ip4 || br.ip6
	case unix.NFPROTO_IPV4:
		return br.ip4
	case unix.NFPROTO_IPV6:
		return br.ip6
	}
	return false
}

// direction gives the direction in which the fast path would go past the chain
// at a port, none if it would not.
func (c chain) direction(p vswitch.Port, below map[string][]int) vswitch.Direction {
	if !c.onDevices() {
		return 0
	}
	on := func(name string) bool {
		return slices.ContainsFunc(c.devices, func(m deviceMatch) bool { return m.matches(name) })
	}
	if c.family == unix.NFPROTO_NETDEV && c.hook == unix.NF_NETDEV_EGRESS {
		// The kernel marks what tc redirects at ingress to skip this hook of its
		// target, and XDP never comes by it.
		if on(p.Name) {
			return vswitch.Out
		}
		return 0
	}
	// Both our hooks come before ingress, and XDP on a bond before that of the
	// devices below it.
	if on(p.Name) {
		return vswitch.In
	}
	for name, carried := range below {
		if on(name) && slices.Contains(carried, p.Ifindex) {
			return vswitch.In
		}
	}
	return 0
}

// An nftTable is a table with those of its chains that bridged frames meet.
type nftTable struct {
	chain   // the first; its family and table are those of all
	effects []effect
}

// nftTables gives the tables that bridged frames meet, given what br_netfilter
// hands over.
func nftTables(chains []chain, br calls) (tables []nftTable) {
	for _, c := range chains {
		if !c.onBridges(br) {
			continue
		}
		if n := len(tables); n > 0 && tables[n-1].family == c.family && tables[n-1].table == c.table {
			tables[n-1].effects = append(tables[n-1].effects, c.effect)
			continue
		}
		tables = append(tables, nftTable{c, []effect{c.effect}})
	}
	return tables
}

// A ruleset is that of nftables. It reads the chains by nfnetlink itself: a library that knew
// less of a newer kernel's ways to name devices would hide a rule, and the chain's
// own count of its rules saves reading these, of which a host may have thousands.
type ruleset struct {
	absent     bool // the kernel has no nftables, and there was no module
	have       bool
	generation uint32
	chains     []chain
	filters    uint64 // a digest of libvirt's filters, see FilterRules
}

// errInterrupted says that the rules changed while they were read.
var errInterrupted = errors.New("the rules keep changing")

// read gives the hooked chains that are not without effect, in the order of their
// tables. While the ruleset's generation stays the same it costs one request.
func (n *ruleset) read() ([]chain, error) {
	// The first request makes the kernel load its module. If there is none, each
	// further one would start modprobe in vain.
	if n.absent && !moduleLoaded("nf_tables") {
		return nil, nil
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		n.absent = true
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for nftables: %w", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, fmt.Errorf("reading nftables: %w", err)
	}
	for range 3 {
		err = n.refresh(c)
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EINVAL) && !n.have: // what nfnetlink says of a part that it lacks
		n.absent = true
		return nil, nil
	case err != nil:
		n.have = false
		return nil, fmt.Errorf("reading nftables: %w", err)
	}
	n.absent = false
	return n.chains, nil
}

func (n *ruleset) refresh(c *netlink.Conn) error {
	// The generation comes first: a change after it is read again the next time.
	generation, err := readGeneration(c)
	if err != nil {
		return fmt.Errorf("asking for the ruleset's generation: %w", err)
	}
	if n.have && generation == n.generation {
		return nil
	}
	dormant, err := dormantTables(c)
	if err != nil {
		return fmt.Errorf("listing tables: %w", err)
	}
	answers, err := nftRequest(c, unix.NFT_MSG_GETCHAIN, netlink.Dump)
	if err != nil {
		return fmt.Errorf("listing chains: %w", err)
	}
	var chains []chain
	for _, m := range answers {
		ch, hooked, err := parseChain(m.Data)
		if err != nil {
			return fmt.Errorf("reading a chain: %w", err)
		}
		if !hooked || !ch.rules && !ch.drops || dormant[tableKey{ch.family, ch.table}] {
			continue
		}
		// Only there are the devices of a rule ports of bridges.
		if ch.onBridges(calls{}) && !ch.drops {
			if ch.ports, err = readPorts(c, ch); err != nil {
				return fmt.Errorf("reading chain %s: %w", ch.effect.chain, err)
			}
		}
		chains = append(chains, ch)
	}
	slices.SortStableFunc(chains, func(a, b chain) int {
		return cmp.Or(cmp.Compare(a.family, b.family), strings.Compare(a.table, b.table), strings.Compare(a.effect.chain, b.effect.chain))
	})
	n.filters = 0
	for i, ch := range chains {
		if !ch.hasFilter() || i > 0 && chains[i-1].hasFilter() && chains[i-1].table == ch.table {
			continue // or the table has been digested
		}
		digest, err := digestRules(c, ch.family, ch.table)
		if err != nil {
			return err
		}
		n.filters += digest
	}
	n.have, n.generation, n.chains = true, generation, chains
	return nil
}

// nftRequest asks about all families.
func nftRequest(c *netlink.Conn, message int, flags netlink.HeaderFlags) ([]netlink.Message, error) {
	return nftSend(c, message, flags, unix.NFPROTO_UNSPEC, nil)
}

// nftSend asks about what the attributes name.
func nftSend(c *netlink.Conn, message int, flags netlink.HeaderFlags, family uint8, attributes []byte) ([]netlink.Message, error) {
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | message),
			Flags: netlink.Request | flags,
		},
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
	for _, m := range answers {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return nil, errInterrupted
		}
	}
	return answers, err
}

// attributes gives the family and the attributes of an answer.
func attributes(data []byte) (family uint8, ad *netlink.AttributeDecoder, err error) {
	if len(data) < nfgenmsgLen {
		return 0, nil, fmt.Errorf("%d bytes are no message", len(data))
	}
	ad, err = netlink.NewAttributeDecoder(data[nfgenmsgLen:])
	if err == nil {
		ad.ByteOrder = binary.BigEndian
	}
	return data[0], ad, err
}

func readGeneration(c *netlink.Conn) (uint32, error) {
	answers, err := nftRequest(c, unix.NFT_MSG_GETGEN, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range answers {
		_, ad, err := attributes(m.Data)
		if err != nil {
			return 0, err
		}
		for ad.Next() {
			if ad.Type() == unix.NFTA_GEN_ID {
				return ad.Uint32(), ad.Err()
			}
		}
	}
	return 0, errors.New("the kernel did not tell")
}

type tableKey struct {
	family uint8
	name   string
}

// dormantTables gives the tables whose chains are not hooked for now.
func dormantTables(c *netlink.Conn) (map[tableKey]bool, error) {
	answers, err := nftRequest(c, unix.NFT_MSG_GETTABLE, netlink.Dump)
	if err != nil {
		return nil, err
	}
	dormant := map[tableKey]bool{}
	for _, m := range answers {
		family, ad, err := attributes(m.Data)
		if err != nil {
			return nil, err
		}
		key := tableKey{family: family}
		asleep := false
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_TABLE_NAME:
				key.name = ad.String()
			case unix.NFTA_TABLE_FLAGS:
				asleep = ad.Uint32()&unix.NFT_TABLE_F_DORMANT != 0
			}
		}
		if err := ad.Err(); err != nil {
			return nil, err
		}
		if asleep {
			dormant[key] = true
		}
	}
	return dormant, nil
}

// parseChain reads the answer about one chain, and says whether it is hooked.
func parseChain(data []byte) (c chain, hooked bool, err error) {
	var ad *netlink.AttributeDecoder
	if c.family, ad, err = attributes(data); err != nil {
		return c, false, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			c.effect.chain = ad.String()
		case unix.NFTA_CHAIN_POLICY:
			c.drops = ad.Uint32() == 0 // NF_DROP
		case unix.NFTA_CHAIN_USE:
			// Its rules and what jumps to it; nothing jumps to a hooked chain.
			c.rules = ad.Uint32() > 0
		case unix.NFTA_CHAIN_HOOK:
			hooked = true
			ad.Nested(c.parseHook)
		}
	}
	return c, hooked, ad.Err()
}

func (c *chain) parseHook(ad *netlink.AttributeDecoder) error {
	var one string
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_HOOK_HOOKNUM:
			c.hook = ad.Uint32()
		case unix.NFTA_HOOK_DEV:
			one = ad.String()
		case hookDevs:
			ad.Nested(c.parseDevices)
		}
	}
	// It repeats what the list has if that has one.
	if len(c.devices) == 0 && one != "" {
		c.devices = []deviceMatch{{name: one}}
	}
	return nil
}

func (c *chain) parseDevices(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		name := string(ad.Bytes())
		text, terminated := strings.CutSuffix(name, "\x00")
		// Linux 6.16 tells a prefix by the missing end of the name alone.
		prefix := ad.Type() == devicePrefix || ad.Type() == deviceName && !terminated
		c.devices = append(c.devices, deviceMatch{name: text, prefix: prefix})
	}
	return nil
}

// moduleLoaded says whether a kernel module is loaded. One that is built in
// mostly counts as not loaded.
func moduleLoaded(name string) bool {
	_, err := os.Stat("/sys/module/" + name)
	return err == nil
}
