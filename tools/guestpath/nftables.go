package guestpath

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// dropByNftables drops UDP to port 9 at a device's ingress, where nftables does it with
// the least work, until remove.
func dropByNftables(dev string) (remove func() error, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("opening nftables: %w", err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyNetdev, Name: "guestpath"})
	chain := c.AddChain(&nftables.Chain{
		Name: "ingress", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookIngress,
		Priority: nftables.ChainPriorityFilter, Device: dev,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 9}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	if err := c.Flush(); err != nil {
		return nil, fmt.Errorf("making a rule of nftables: %w", err)
	}
	return func() error {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			return fmt.Errorf("removing the rule of nftables: %w", err)
		}
		return nil
	}, nil
}
