package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A rule is somebody's on the host.
type rule struct {
	name      string
	put, take func() error
	port      string // where to look for the reason
	state     string // of that port while the rule is there
	reason    string
	stops     bool // echoes between guests 0 and 1, whatever their way
}

// nft changes the host's ruleset.
func (h *host) nft(change func(*nftables.Conn)) error {
	c, err := nftables.New(nftables.WithNetNSFd(h.Host.NetNS()))
	if err != nil {
		return err
	}
	change(c)
	return c.Flush()
}

// dropICMP is the rule that drops IPv4's ICMP.
func dropICMP() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 9, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMP}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// nftRule is a table of its own with one chain, which has one rule unless it
// drops all by its policy.
func (h *host) nftRule(family nftables.TableFamily, chain nftables.Chain, drops bool, r rule) rule {
	table := &nftables.Table{Family: family, Name: "somebody"}
	chain.Table, chain.Type = table, nftables.ChainTypeFilter
	chain.Priority = nftables.ChainPriorityFilter
	r.put = func() error {
		return h.nft(func(c *nftables.Conn) {
			c.AddTable(table)
			if drops {
				policy := nftables.ChainPolicyDrop
				chain.Policy = &policy
			}
			added := c.AddChain(&chain)
			if !drops {
				c.AddRule(&nftables.Rule{Table: table, Chain: added, Exprs: dropICMP()})
			}
		})
	}
	r.take = func() error { return h.nft(func(c *nftables.Conn) { c.DelTable(table) }) }
	return r
}

func (h *host) qdisc(t *testing.T, dev string, r rule) rule {
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: h.ifindex(t, dev), Handle: netlink.MakeHandle(7, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1 << 20, Limit: 1 << 20, Buffer: 1 << 20,
	}
	r.put = func() error { return h.Host.Netlink().QdiscAdd(q) }
	r.take = func() error { return h.Host.Netlink().QdiscDel(q) }
	return r
}

// legacyPolicy sets what the FORWARD chain of legacy iptables does with what no
// rule decides, as 'iptables -P FORWARD' does. The table is there from then on.
func (h *host) legacyPolicy(verdict int32) error {
	const (
		option, policyAt  = 64, 88 // IPT_SO_GET_INFO, IPT_SO_SET_REPLACE; target_offset
		forward, nameLen  = unix.NF_INET_FORWARD, 32
		infoLen, replacer = 84, 96
	)
	native := binary.NativeEndian
	return h.Host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		call := func(number uintptr, name int, b []byte, size uintptr) error {
			if _, _, errno := unix.Syscall6(number, uintptr(fd), unix.SOL_IP, uintptr(name), uintptr(unsafe.Pointer(&b[0])), size, 0); errno != 0 {
				return errno
			}
			return nil
		}
		get := func(name int, b []byte) error {
			copy(b, "filter")
			size := uint32(len(b))
			return call(unix.SYS_GETSOCKOPT, name, b, uintptr(unsafe.Pointer(&size)))
		}
		info := make([]byte, infoLen)
		if err := get(option, info); err != nil {
			return fmt.Errorf("asking for the table filter: %w", err)
		}
		entries := make([]byte, 40+native.Uint32(info[infoLen-4:]))
		copy(entries[nameLen:], info[infoLen-4:])
		if err := get(option+1, entries); err != nil {
			return fmt.Errorf("reading the table filter: %w", err)
		}
		entries = entries[40:]
		underflow := native.Uint32(info[nameLen+4+20+4*forward:])
		target := underflow + uint32(native.Uint16(entries[underflow+policyAt:]))
		native.PutUint32(entries[target+32:], uint32(verdict))

		number := native.Uint32(info[infoLen-8:])
		counters := make([]byte, 16*number)
		replace := make([]byte, replacer+len(entries))
		copy(replace, info[:nameLen+4])                   // name, valid_hooks
		copy(replace[nameLen+4:], info[infoLen-8:])       // num_entries, size
		copy(replace[nameLen+12:], info[nameLen+4:][:40]) // hook_entry, underflow
		native.PutUint32(replace[nameLen+12+40:], number) // num_counters
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(&counters[0])
		native.PutUint64(replace[nameLen+12+44:], uint64(uintptr(unsafe.Pointer(&counters[0]))))
		copy(replace[replacer:], entries)
		if err := call(unix.SYS_SETSOCKOPT, option, replace, uintptr(len(replace))); err != nil {
			return fmt.Errorf("replacing the table filter: %w", err)
		}
		return nil
	})
}

// rules are one of each kind.
func (h *host) rules(t *testing.T) []rule {
	const bridged, on = "br0", "vnet0"
	rules := []rule{
		h.nftRule(nftables.TableFamilyBridge, nftables.Chain{Name: "fwd", Hooknum: nftables.ChainHookForward}, false, rule{
			name: "nftables of the bridge", port: "vnet1", state: control.StateHeld, stops: true,
			reason: "nftables table bridge somebody decides over bridged frames: chain fwd has rules; take the rules out (see 'nft list table bridge somebody'), or name br0 under accept_bypass",
		}),
		h.nftRule(nftables.TableFamilyBridge, nftables.Chain{Name: "pre", Hooknum: nftables.ChainHookPrerouting}, true, rule{
			name: "policy of the bridge", port: "vnet1", state: control.StateHeld, stops: true,
			reason: "nftables table bridge somebody decides over bridged frames: chain pre drops everything",
		}),
		h.nftRule(nftables.TableFamilyIPv4, nftables.Chain{Name: "fwd", Hooknum: nftables.ChainHookForward}, false, rule{
			name: "nftables by br_netfilter", port: "vnet0", state: control.StateHeld, stops: true,
			reason: "nftables table ip somebody decides over bridged IP packets, by br_netfilter: chain fwd has rules",
		}),
		h.nftRule(nftables.TableFamilyINet, nftables.Chain{Name: "post", Hooknum: nftables.ChainHookPostrouting}, false, rule{
			name: "nftables inet by br_netfilter", port: lab.NIC, state: control.StateHeld, stops: true,
			reason: "nftables table inet somebody decides over bridged IP packets, by br_netfilter: chain post has rules",
		}),
		{
			name: "legacy iptables", port: "vnet0", state: control.StateHeld, stops: true,
			reason: "iptables table filter decides over bridged IPv4 packets, by br_netfilter: chain FORWARD drops everything",
			put:    func() error { return h.legacyPolicy(-1) },
			take:   func() error { return h.legacyPolicy(-2) },
		},
		h.nftRule(nftables.TableFamilyNetdev, nftables.Chain{Name: "in", Hooknum: nftables.ChainHookIngress, Device: on}, false, rule{
			name: "nftables at ingress", port: on, state: control.StateFastOut, stops: true,
			reason: "nftables table netdev somebody decides over frames of device vnet0: chain in has rules",
		}),
		h.nftRule(nftables.TableFamilyINet, nftables.Chain{Name: "in", Hooknum: nftables.ChainHookRef(5), Device: on}, false, rule{
			name: "nftables inet at ingress", port: on, state: control.StateFastOut, stops: true,
			reason: "nftables table inet somebody decides over frames of device vnet0: chain in has rules",
		}),
		h.nftRule(nftables.TableFamilyNetdev, nftables.Chain{Name: "out", Hooknum: nftables.ChainHookEgress, Device: on}, false, rule{
			name: "nftables at egress", port: on, state: control.StateFastIn, stops: true,
			reason: "nftables table netdev somebody decides over frames of device vnet0: chain out has rules",
		}),
		h.qdisc(t, on, rule{
			name: "qdisc", port: on, state: control.StateFast, // by tc
			reason: "qdisc tbf 7: limits or drops frames to vnet0, which XDP goes past; take it off (see 'tc qdisc show dev vnet0'",
		}),
	}
	return rules
}

// seen is within which a change must be in force: the second, and what a
// busy machine takes.
const seen = 2 * time.Second

func (h *host) put(t *testing.T, r rule) {
	t.Helper()
	if err := r.put(); err != nil {
		t.Fatalf("putting a rule: %v", err)
	}
}

func (h *host) take(t *testing.T, r rule) {
	t.Helper()
	if err := r.take(); err != nil {
		t.Fatalf("taking the rule away: %v", err)
	}
}

// checkStopped checks that no echo comes back between two guests.
func checkStopped(t *testing.T, from, to *lab.Guest) {
	t.Helper()
	for range 3 {
		if err := lab.Ping(within(t, 100*time.Millisecond), from.Node, to.Addr4, 1); err == nil {
			t.Errorf("%s reaches %s past the rule", from.Name(), to.Name())
			return
		}
	}
}

// A port is fast, a rule comes and it is held back, which stops what the rule
// forbids; the rule goes, and it is fast.
func TestPolicies(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{})
	a, b := h.Guests[0], h.Guests[1]
	for _, r := range h.rules(t) {
		h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
		began := time.Now()
		h.put(t, r)
		h.awaitPort(t, seen, r.port, r.state, r.reason)
		t.Logf("%s: held after %v", r.name, time.Since(began))
		if r.stops {
			checkStopped(t, a, b)
			checkStopped(t, b, a)
		} else {
			ping(t, a.Node, b.Node)
		}
		h.checkConsistent(t)
		h.take(t, r)
		h.awaitFast(t, lab.NIC, a.Port, b.Port)
		if t.Failed() {
			t.Fatalf("with %s", r.name)
		}
	}
	h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
}

// The bridge is named under accept_bypass: all stays fast, and says what it goes
// past.
func TestPoliciesAccepted(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{Config: labConfig + "\n" + `accept_bypass = ["br0"]`})
	a, b := h.Guests[0], h.Guests[1]
	for _, r := range h.rules(t) {
		h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
		h.put(t, r)
		h.await(t, seen, r.name+" is a remark", func() bool {
			p := h.port(t, r.port)
			return p.State == control.StateFast && holdText(p, "; the fast path goes past it, as accept_bypass says for br0") && p.Held[0].Direction == 0
		})
		h.take(t, r)
		h.awaitFast(t, lab.NIC, a.Port, b.Port)
		if t.Failed() {
			t.Fatalf("with %s", r.name)
		}
	}
}

// Rules that were there first hold from the first frame on, also those of a
// daemon whose tick is slow.
func TestPolicyAtStart(t *testing.T) {
	h := newLab(t, lab.Options{Guests: 2})
	a, b := h.Guests[0], h.Guests[1]
	r := h.rules(t)[0]
	h.put(t, r)
	h.start(t, lab.DaemonOptions{Config: longLease})
	if p := h.port(t, r.port); p.State != r.state || !holdText(p, r.reason) {
		t.Errorf("%s is %s when the daemon is ready, because %v", p.Name, p.State, p.Held)
	}
	checkStopped(t, a, b)
	h.take(t, r)
	h.awaitFast(t, lab.NIC, a.Port, b.Port)
	h.put(t, r)
	h.awaitPort(t, seen, r.port, r.state, r.reason)
	checkStopped(t, a, b)
}

// br_netfilter hands frames over for all bridges, for one, or not at all.
func TestPolicyByBridgeNetfilter(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 2}, lab.DaemonOptions{})
	a, b := h.Guests[0], h.Guests[1]
	if _, err := h.Host.Sysctl("net/bridge/bridge-nf-call-iptables"); os.IsNotExist(err) {
		t.Skip("this kernel has no br_netfilter")
	}
	r := h.rules(t)[2]
	h.put(t, r)
	h.awaitPort(t, seen, r.port, r.state, r.reason)
	if err := h.Host.SetSysctl("net/bridge/bridge-nf-call-iptables", "0"); err != nil {
		t.Fatal(err)
	}
	h.awaitFast(t, lab.NIC, a.Port, b.Port)
	h.checkFast(t, a.Node, b.Node, a.Port, b.Port)
	h.ip(t, "link set br0 type bridge nf_call_iptables 1")
	h.awaitPort(t, seen, r.port, r.state, r.reason)
	checkStopped(t, a, b)
	h.ip(t, "link set br0 type bridge nf_call_iptables 0")
	h.awaitFast(t, lab.NIC, a.Port, b.Port)
}

// The fast path sends to an uplink through its qdisc, which holds though the uplink
// is fast; but past its egress hook.
func TestPolicyOfUplink(t *testing.T) {
	h := newHost(t, lab.Options{Guests: 1}, lab.DaemonOptions{})
	g := h.Guests[0]
	limit := h.qdisc(t, lab.NIC, rule{})
	h.put(t, limit)
	h.checkFast(t, h.Wire, g.Node, lab.NIC, g.Port)
	sent := func() uint64 {
		qdiscs, err := h.Host.Netlink().QdiscList(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range qdiscs {
			if q.Type() == "tbf" {
				return uint64(q.Attrs().Statistics.Basic.Packets)
			}
		}
		return 0
	}
	before, redirected := sent(), h.count(t, g.Port, vswitch.Redirected)
	ping(t, g.Node, h.Wire)
	n, through := h.count(t, g.Port, vswitch.Redirected)-redirected, sent()-before
	if n < 3 || through < n {
		t.Errorf("of 3 requests %d were redirected, and %d went through the uplink's qdisc", n, through)
	}
	egress := h.nftRule(nftables.TableFamilyNetdev, nftables.Chain{Name: "out", Hooknum: nftables.ChainHookEgress, Device: lab.NIC}, false, rule{})
	h.put(t, egress)
	h.awaitPort(t, seen, lab.NIC, control.StateFastIn, "nftables table netdev somebody decides over frames of device nic0: chain out has rules")
	if err := lab.Ping(within(t, 300*time.Millisecond), g.Node, lab.WireAddr4, 1); err == nil {
		t.Error("a request went past the uplink's egress hook")
	}
	h.take(t, egress)
	h.take(t, limit)
}
