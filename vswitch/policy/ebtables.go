package policy

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// The options of legacy ebtables, from linux/netfilter_bridge/ebtables.h.
const (
	ebtGetInfo    = 128
	ebtGetEntries = 129
)

// Offsets in struct ebt_replace, with 64-bit pointers.
const (
	ebtEntries     = 36  // nentries
	ebtSize        = 40  // entries_size
	ebtNumCounters = 96  // num_counters
	ebtBuffer      = 112 // entries
	ebtReplaceLen  = 120
)

// struct ebt_entries, which begins a chain, and struct ebt_entry, a rule.
const (
	ebtChainName   = 4
	ebtChainPolicy = 40
	ebtChainRules  = 44
	ebtChainLen    = 48
	ebtInvert      = 4 // invflags
	ebtIn          = 10
	ebtOut         = 42
	ebtTarget      = 104 // target_offset
	ebtNext        = 108 // next_offset
	ebtStandard    = 40  // from a target to the verdict of a standard one
	ebtDrop        = -2
)

// The flags that turn the match of a device round, EBT_IIN and EBT_IOUT.
const (
	ebtInvertIn  = 2
	ebtInvertOut = 4
)

// ebtTables are the chains that bridged frames meet, by table. In broute, DROP
// means that the frame is routed.
var ebtTables = []struct {
	name   string
	chains []string
}{
	{"filter", []string{"FORWARD"}},
	{"nat", []string{"PREROUTING", "POSTROUTING"}},
	{"broute", []string{"BROUTING"}},
}

// ebtables reads the tables of legacy ebtables.
type ebtables struct {
	absent  map[string]bool // tables that the kernel does not have built in
	filters uint64          // a digest of libvirt's filters, see FilterRules
}

// read gives the tables that are not without effect.
//
// To ask for a table loads its module, and since Linux 5.15 makes the table, as
// 'ebtables -L' does; so it asks only for those whose module is loaded. What is
// built in can't be told from what is not there, and is asked for once.
func (e *ebtables) read() ([]table, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for %s: %w", toolEB, err)
	}
	defer unix.Close(fd)
	// The kernel reads the question first, so this asks whether anybody would.
	switch err := getsockopt(fd, unix.SOL_IP, ebtGetInfo, nil); {
	case errors.Is(err, unix.ENOPROTOOPT):
		return nil, nil
	case !errors.Is(err, unix.EFAULT):
		return nil, fmt.Errorf("asking for %s: %w", toolEB, err)
	}
	builtIn := !moduleLoaded("ebtables")
	var tables []table
	e.filters = 0
	for _, t := range ebtTables {
		if !moduleLoaded("ebtable_"+t.name) && (!builtIn || e.absent[t.name]) {
			continue
		}
		chains, digest, err := ebtRead(fd, t.name, t.chains)
		if errors.Is(err, unix.ENOENT) {
			if e.absent == nil {
				e.absent = map[string]bool{}
			}
			e.absent[t.name] = true
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading table %s of %s: %w", t.name, toolEB, err)
		}
		if len(chains) > 0 {
			tables = append(tables, table{tool: toolEB, name: t.name, chains: chains})
		}
		if slices.ContainsFunc(chains, effect.hasFilter) {
			e.filters += digest
		}
	}
	return tables, nil
}

// ebtRead gives the chains of a table that are not without effect, and a number for
// all its rules.
func ebtRead(fd int, name string, bridged []string) (chains []effect, digest uint64, err error) {
	for range 3 {
		replace := make([]byte, ebtReplaceLen)
		copy(replace[:tableNameLen-1], name)
		if err = getsockopt(fd, unix.SOL_IP, ebtGetInfo, replace); err != nil {
			return nil, 0, err
		}
		entries := make([]byte, native.Uint32(replace[ebtSize:]))
		if err = ebtFill(fd, replace, entries); err == nil {
			h := fnv.New64a()
			h.Write(entries)
			chains, err = ebtParse(entries, bridged)
			return chains, h.Sum64(), err
		}
		if !errors.Is(err, unix.EINVAL) { // the table has changed its size meanwhile
			return nil, 0, err
		}
	}
	return nil, 0, err
}

// ebtParse gives the chains of a table that are not without effect.
func ebtParse(entries []byte, bridged []string) (chains []effect, err error) {
	var ports *[]portMatch // of the chain whose rules these are; nil if it matters no more
	for at := 0; at < len(entries); {
		rest := entries[at:]
		if len(rest) < 4 {
			return nil, errors.New("a rule is cut short")
		}
		if native.Uint32(rest) != 0 { // a rule
			if len(rest) < ebtNext+4 {
				return nil, errors.New("a rule is cut short")
			}
			next := int(native.Uint32(rest[ebtNext:]))
			if next <= 0 {
				return nil, errors.New("a rule has no end")
			}
			if ports != nil {
				if m, ok := ebtPort(rest); ok {
					m.filter = m.leadsToFilter(ebtJumpsTo(entries, rest[:min(next, len(rest))]))
					*ports = append(*ports, m)
				} else {
					*ports, ports = nil, nil
				}
			}
			at += next
			continue
		}
		if len(rest) < ebtChainLen {
			return nil, errors.New("a chain is cut short")
		}
		c := effect{
			chain: text(rest[ebtChainName : ebtChainName+tableNameLen]),
			rules: native.Uint32(rest[ebtChainRules:]) > 0,
			drops: int32(native.Uint32(rest[ebtChainPolicy:])) == ebtDrop,
		}
		ports = nil
		if slices.Contains(bridged, c.chain) && (c.rules || c.drops) {
			chains = append(chains, c)
			if !c.drops {
				ports = &chains[len(chains)-1].ports
			}
		}
		at += ebtChainLen
	}
	return chains, nil
}

// ebtPort gives the device that a rule names, false if it names none, or all but
// one.
func ebtPort(rule []byte) (portMatch, bool) {
	inverted := native.Uint32(rule[ebtInvert:])
	for _, of := range []struct {
		offset    int
		invert    uint32
		direction vswitch.Direction
	}{{ebtIn, ebtInvertIn, vswitch.In}, {ebtOut, ebtInvertOut, vswitch.Out}} {
		name := text(rule[of.offset : of.offset+unix.IFNAMSIZ])
		if name == "" || inverted&of.invert != 0 {
			continue
		}
		// ebtables writes a trailing + as a byte 1.
		name, _, prefix := strings.Cut(name, "\x01")
		return portMatch{deviceMatch: deviceMatch{name, prefix}, direction: of.direction}, true
	}
	return portMatch{}, false
}

// ebtJumpsTo gives the chain that a rule jumps to, with whatever it matches before;
// empty if it does anything else. A jump is told by where in the table the chain is.
func ebtJumpsTo(entries, rule []byte) string {
	at := int(native.Uint32(rule[ebtTarget:]))
	if at < 0 || at+ebtStandard+4 > len(rule) || text(rule[at:at+tableNameLen]) != "standard" {
		return ""
	}
	to := int(int32(native.Uint32(rule[at+ebtStandard:])))
	if to < 0 || to+ebtChainLen > len(entries) || native.Uint32(entries[to:]) != 0 {
		return ""
	}
	return text(entries[to+ebtChainName : to+ebtChainName+tableNameLen])
}
