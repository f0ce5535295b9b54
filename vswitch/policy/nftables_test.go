package policy

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Chains without an effect on bridged frames hold nothing, until they have one.
func TestRuleset(t *testing.T) {
	h := newHost(t, 1)
	r := NewReader(Options{})
	check := func(what string, want bool) {
		t.Helper()
		if holds := h.holds(t, r); len(holds) > 0 != want {
			t.Errorf("%s: held for %v, want held %v", what, holds, want)
		}
	}
	check("no ruleset", false)
	bridge := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "t"}
	accept := nftables.ChainPolicyAccept
	base := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return &nftables.Chain{Name: name, Table: bridge, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &accept}
	}
	forward, input, regular := base("forward", nftables.ChainHookForward), base("input", nftables.ChainHookInput), &nftables.Chain{Name: "regular", Table: bridge}
	drop := func(c *nftables.Chain) *nftables.Rule {
		return &nftables.Rule{Table: bridge, Chain: c, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}}
	}
	h.nft(t, func(c *nftables.Conn) {
		c.AddTable(bridge)
		for _, chain := range []*nftables.Chain{forward, input, regular} {
			c.AddChain(chain)
		}
		c.AddRule(drop(input))
		c.AddRule(drop(regular))
	})
	check("an empty chain, and rules where no bridged frame comes by", false)
	h.nft(t, func(c *nftables.Conn) {
		c.AddRule(&nftables.Rule{Table: bridge, Chain: forward, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "regular"}}})
	})
	check("a jump", true)
	h.nft(t, func(c *nftables.Conn) { c.FlushChain(forward) })
	check("the chain is empty again", false)
	h.nft(t, func(c *nftables.Conn) {
		policy := nftables.ChainPolicyDrop
		forward.Policy = &policy
		c.AddChain(forward)
	})
	check("a policy that drops", true)
	h.setTableFlags(t, unix.NFPROTO_BRIDGE, "t", unix.NFT_TABLE_F_DORMANT)
	check("a dormant table", false)
	h.setTableFlags(t, unix.NFPROTO_BRIDGE, "t", 0)
	check("the table awakes", true)
	h.nft(t, func(c *nftables.Conn) { c.DelTable(bridge) })
	check("no table", false)
}

// setTableFlags does what the library has no call for.
func (h *host) setTableFlags(t *testing.T, family byte, table string, flags uint32) {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.String(unix.NFTA_TABLE_NAME, table)
	ae.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	attributes, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	message := func(typ, flags int, family, resource byte, attributes []byte) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request | netlink.HeaderFlags(flags)},
			Data:   append([]byte{family, 0, 0, resource}, attributes...),
		}
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: h.NetNS()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
		message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NLM_F_ACK, family, 0, attributes),
		message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(); err != nil {
		t.Fatal(err)
	}
}

// Unless the generation has changed, nothing but it is read.
func TestRulesetReadOnce(t *testing.T) {
	h := newHost(t, 0)
	var rs ruleset
	read := func() {
		t.Helper()
		if err := h.Do(func() error { _, err := rs.read(); return err }); err != nil {
			t.Fatal(err)
		}
	}
	read()
	kept := []chain{{table: "kept"}}
	rs.chains = kept
	read()
	if len(rs.chains) != 1 {
		t.Error("the chains were read again though nothing has changed")
	}
	h.nft(t, func(c *nftables.Conn) { c.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: "t"}) })
	read()
	if len(rs.chains) != 0 {
		t.Error("the chains were not read again after a change")
	}
}

// Chains on devices are read again when devices have changed.
func TestRulesetFollowsDevices(t *testing.T) {
	h := newHost(t, 1)
	r := NewReader(Options{})
	h.holds(t, r)
	r.ruleset.chains = []chain{{family: unix.NFPROTO_NETDEV, table: "t", effect: effect{rules: true}}}
	if h.holds(t, r); len(r.ruleset.chains) != 1 {
		t.Error("the chains were read again though no device has changed")
	}
	for ifindex, p := range h.ports {
		p.Name += "x"
		h.ports[ifindex] = p
	}
	if h.holds(t, r); len(r.ruleset.chains) != 0 {
		t.Error("a chain of a device that was there before is still there")
	}
}

// What a newer kernel tells of devices.
func TestParseChain(t *testing.T) {
	message := func(devices func(*netlink.AttributeEncoder)) []byte {
		ae := netlink.NewAttributeEncoder()
		ae.String(unix.NFTA_CHAIN_TABLE, "t")
		ae.String(unix.NFTA_CHAIN_NAME, "c")
		ae.Nested(unix.NFTA_CHAIN_HOOK, func(ae *netlink.AttributeEncoder) error {
			ae.Bytes(unix.NFTA_HOOK_HOOKNUM, []byte{0, 0, 0, 1})
			ae.Nested(hookDevs, func(ae *netlink.AttributeEncoder) error { devices(ae); return nil })
			return nil
		})
		ae.Bytes(unix.NFTA_CHAIN_POLICY, []byte{0, 0, 0, 0})
		ae.Bytes(unix.NFTA_CHAIN_USE, []byte{0, 0, 0, 2})
		b, err := ae.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte{unix.NFPROTO_NETDEV, 0, 0, 0}, b...)
	}
	for name, tt := range map[string]struct {
		devices func(*netlink.AttributeEncoder)
		want    []deviceMatch
	}{
		"none": {func(*netlink.AttributeEncoder) {}, nil},
		"two": {func(ae *netlink.AttributeEncoder) {
			ae.String(deviceName, "eth0")
			ae.String(deviceName, "eth1")
		}, []deviceMatch{{"eth0", false}, {"eth1", false}}},
		"prefix":         {func(ae *netlink.AttributeEncoder) { ae.String(devicePrefix, "vnet") }, []deviceMatch{{"vnet", true}}},
		"prefix of 6.16": {func(ae *netlink.AttributeEncoder) { ae.Bytes(deviceName, []byte("vnet")) }, []deviceMatch{{"vnet", true}}},
	} {
		c, hooked, err := parseChain(message(tt.devices))
		want := chain{family: unix.NFPROTO_NETDEV, table: "t", hook: unix.NF_NETDEV_EGRESS, effect: effect{"c", true, true, nil}, devices: tt.want}
		if d := cmp.Diff(want, c, cmp.AllowUnexported(chain{}, effect{}, portMatch{}, deviceMatch{})); err != nil || !hooked || d != "" {
			t.Errorf("%s: hooked %v, %v (-want +got):\n%s", name, hooked, err, d)
		}
	}
	for _, b := range [][]byte{nil, {0}, {0, 0, 0, 0, 9, 0, 1, 0}} {
		if c, _, err := parseChain(b); err == nil {
			t.Errorf("%v is a chain: %+v", b, c)
		}
	}
}
