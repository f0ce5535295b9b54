package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The older tools, by the names of their commands. What their nft variants make
// is nftables'.
const (
	toolIP4 = "iptables"
	toolIP6 = "ip6tables"
	toolARP = "arptables"
	toolEB  = "ebtables"
)

var native = binary.NativeEndian

// An xtable is how the tables of a tool are read: struct ipt_getinfo and struct
// ipt_get_entries, or ip6t_ and arpt_, from linux/netfilter_ipv4/ip_tables.h on.
type xtable struct {
	tool          string
	names         string // the file that lists the tables which are in use
	domain, level int
	getInfo       int            // the option; that for entries is the next
	hooks         int            // how many there are
	bridged       map[int]string // chains that bridged frames meet, by hook
	targetOffset  int            // where in an entry it is told where the target is
}

const (
	tableNameLen    = 32
	entriesHeader   = 40 // struct ipt_get_entries
	targetHeader    = 32 // struct xt_entry_target, before a standard target's verdict
	verdictDrop     = -1
	baseIP, baseARP = 64, 96
)

var bridgedIP = map[int]string{
	unix.NF_INET_PRE_ROUTING: "PREROUTING", unix.NF_INET_FORWARD: "FORWARD", unix.NF_INET_POST_ROUTING: "POSTROUTING",
}

var xtables = []*xtable{
	{toolIP4, "ip_tables_names", unix.AF_INET, unix.SOL_IP, baseIP, 5, bridgedIP, 88},
	{toolIP6, "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, baseIP, 5, bridgedIP, 140},
	{toolARP, "arp_tables_names", unix.AF_INET, unix.SOL_IP, baseARP, 3, map[int]string{2: "FORWARD"}, 164},
}

// read gives the tables that bridged frames would meet and that are not without
// effect. To ask for a table would make it, so it looks at the list of those that
// are there first.
func (x *xtable) read() ([]table, error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + x.names)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the tables of %s: %w", x.tool, err)
	}
	fd, err := unix.Socket(x.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for %s: %w", x.tool, err)
	}
	defer unix.Close(fd)
	var tables []table
	for name := range strings.FieldsSeq(string(names)) {
		chains, err := x.readTable(fd, name)
		if errors.Is(err, unix.ENOENT) {
			continue // gone meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("reading table %s of %s: %w", name, x.tool, err)
		}
		if len(chains) > 0 {
			tables = append(tables, table{tool: x.tool, name: name, chains: chains})
		}
	}
	return tables, nil
}

func (x *xtable) readTable(fd int, name string) (chains []effect, err error) {
	info := make([]byte, tableNameLen+4+2*4*x.hooks+8)
	for range 3 {
		clear(info)
		copy(info[:tableNameLen-1], name)
		if err = getsockopt(fd, x.level, x.getInfo, info); err != nil {
			return nil, err
		}
		// The policies cost reading all rules, so only where a hold depends on them.
		if chains = x.withRules(info); len(chains) > 0 {
			return chains, nil
		}
		size := native.Uint32(info[len(info)-4:])
		entries := make([]byte, entriesHeader+int(size))
		copy(entries[:tableNameLen-1], name)
		native.PutUint32(entries[tableNameLen:], size)
		err = getsockopt(fd, x.level, x.getInfo+1, entries)
		if err == nil {
			return x.withPolicy(info, entries[entriesHeader:])
		}
		if !errors.Is(err, unix.EAGAIN) { // the table has changed its size meanwhile
			return nil, err
		}
	}
	return nil, err
}

// eachChain calls f with the chains of a table that bridged frames meet, and the
// offsets of their first rule and of their policy.
func (x *xtable) eachChain(info []byte, f func(chain string, first, policy uint32)) {
	valid := native.Uint32(info[tableNameLen:])
	offsets := info[tableNameLen+4:]
	for hook := range x.hooks {
		if chain := x.bridged[hook]; chain != "" && valid&(1<<hook) != 0 {
			f(chain, native.Uint32(offsets[4*hook:]), native.Uint32(offsets[4*(x.hooks+hook):]))
		}
	}
}

func (x *xtable) withRules(info []byte) (chains []effect) {
	x.eachChain(info, func(chain string, first, policy uint32) {
		if first != policy {
			chains = append(chains, effect{chain: chain, rules: true})
		}
	})
	return chains
}

func (x *xtable) withPolicy(info, entries []byte) (chains []effect, err error) {
	x.eachChain(info, func(chain string, _, policy uint32) {
		verdict, ok := x.verdict(entries, int(policy))
		if !ok {
			err = fmt.Errorf("chain %s has no policy", chain)
		} else if verdict == verdictDrop {
			chains = append(chains, effect{chain: chain, drops: true})
		}
	})
	return chains, err
}

// verdict gives the verdict of the standard target of the entry at an offset.
func (x *xtable) verdict(entries []byte, at int) (int32, bool) {
	if at < 0 || at+x.targetOffset+2 > len(entries) {
		return 0, false
	}
	at += int(native.Uint16(entries[at+x.targetOffset:])) + targetHeader
	if at+4 > len(entries) {
		return 0, false
	}
	return int32(native.Uint32(entries[at:])), true
}
