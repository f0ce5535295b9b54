package policy

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A table as the kernel tells it: the rules of each hook before its policy, all
// of one size.
func tableOf(x *xtable, valid uint32, rules map[int]int, policies map[int]int32) (info, entries []byte) {
	const size = 256 // more than any real entry
	info = make([]byte, tableNameLen+4+2*4*x.hooks+8)
	native.PutUint32(info[tableNameLen:], valid)
	for hook := range x.hooks {
		if valid&(1<<hook) == 0 {
			continue
		}
		at := func(n int) []byte { return info[tableNameLen+4+4*n:] }
		native.PutUint32(at(hook), uint32(len(entries)))
		entries = append(entries, make([]byte, size*rules[hook])...)
		native.PutUint32(at(x.hooks+hook), uint32(len(entries)))
		policy := make([]byte, size)
		native.PutUint16(policy[x.targetOffset:], uint16(x.targetOffset+28))
		verdict := int32(-2) // accept
		if p, ok := policies[hook]; ok {
			verdict = p
		}
		native.PutUint32(policy[x.targetOffset+28+targetHeader:], uint32(verdict))
		entries = append(entries, policy...)
	}
	native.PutUint32(info[len(info)-4:], uint32(len(entries)))
	return info, entries
}

func TestXtable(t *testing.T) {
	const drop = verdictDrop
	ip4, ip6, arp := xtables[0], xtables[1], xtables[2]
	for _, tt := range []struct {
		name     string
		x        *xtable
		valid    uint32
		rules    map[int]int
		policies map[int]int32
		want     []effect
	}{
		{name: "empty filter", x: ip4, valid: 0b01110},
		{name: "input and output", x: ip4, valid: 0b01110, rules: map[int]int{1: 3, 3: 2}, policies: map[int]int32{1: drop, 3: drop}},
		{name: "forward", x: ip4, valid: 0b01110, rules: map[int]int{2: 1}, want: []effect{{"FORWARD", true, false, nil}}},
		{name: "forward drops", x: ip4, valid: 0b01110, rules: map[int]int{1: 7}, policies: map[int]int32{2: drop}, want: []effect{{"FORWARD", false, true, nil}}},
		{name: "forward of IPv6 drops", x: ip6, valid: 0b01110, policies: map[int]int32{2: drop}, want: []effect{{"FORWARD", false, true, nil}}},
		{name: "mangle", x: ip6, valid: 0b11111, rules: map[int]int{0: 1, 4: 2}, want: []effect{{"PREROUTING", true, false, nil}, {"POSTROUTING", true, false, nil}}},
		{name: "arp's own", x: arp, valid: 0b011, rules: map[int]int{0: 1, 1: 1}},
		{name: "arp forward drops", x: arp, valid: 0b111, policies: map[int]int32{2: drop}, want: []effect{{"FORWARD", false, true, nil}}},
	} {
		info, entries := tableOf(tt.x, tt.valid, tt.rules, tt.policies)
		got := tt.x.withRules(info)
		if len(got) == 0 {
			var err error
			if got, err = tt.x.withPolicy(info, entries); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(effect{}, portMatch{}, deviceMatch{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
	info, entries := tableOf(ip4, 0b01110, nil, nil)
	for _, n := range []int{0, 200, 400} {
		if _, err := ip4.withPolicy(info, entries[:n]); err == nil {
			t.Errorf("%d bytes of entries are a table", n)
		}
	}
}

// setPolicy does what 'iptables -P' does, for the tool's table filter. The kernel
// refuses a table whose policy is not where it has to be.
func (x *xtable) setPolicy(hook int, verdict int32) error {
	fd, err := unix.Socket(x.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info := make([]byte, tableNameLen+4+2*4*x.hooks+8)
	copy(info, "filter")
	if err := getsockopt(fd, x.level, x.getInfo, info); err != nil {
		return fmt.Errorf("asking for the table: %w", err)
	}
	entries := make([]byte, entriesHeader+int(native.Uint32(info[len(info)-4:])))
	copy(entries, info[:tableNameLen])
	copy(entries[tableNameLen:], info[len(info)-4:])
	if err := getsockopt(fd, x.level, x.getInfo+1, entries); err != nil {
		return fmt.Errorf("reading the table: %w", err)
	}
	entries = entries[entriesHeader:]
	policy := native.Uint32(info[tableNameLen+4+4*(x.hooks+hook):])
	target := policy + uint32(native.Uint16(entries[int(policy)+x.targetOffset:]))
	native.PutUint32(entries[target+targetHeader:], uint32(verdict))

	// struct ipt_replace: name, valid_hooks; num_entries, size; hook_entry,
	// underflow; num_counters, counters; entries
	number := native.Uint32(info[len(info)-8:])
	counters := make([]byte, 16*number)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&counters[0])
	replace := slices.Concat(info[:tableNameLen+4], info[len(info)-8:], info[tableNameLen+4:len(info)-8])
	replace = native.AppendUint32(replace, number)
	replace = native.AppendUint64(replace, uint64(uintptr(unsafe.Pointer(&counters[0]))))
	replace = append(replace, entries...)
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(x.level), uintptr(x.getInfo),
		uintptr(unsafe.Pointer(&replace[0])), uintptr(len(replace)), 0)
	if errno != 0 {
		return fmt.Errorf("replacing the table: %w", errno)
	}
	return nil
}

// The kernel's own tables are read as they are.
func TestXtablesOfKernel(t *testing.T) {
	h := newHost(t, 0)
	for _, x := range xtables {
		set := func(hook int, verdict int32) (tables []table, err error) {
			err = h.Do(func() (err error) {
				if err = x.setPolicy(hook, verdict); err == nil {
					tables, err = x.read()
				}
				return err
			})
			return tables, err
		}
		tables, err := set(2, -2)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOPROTOOPT) {
			t.Logf("this kernel has no legacy %s", x.tool)
			continue
		}
		if err != nil || len(tables) != 0 {
			t.Errorf("%s with a table without effect has %+v (%v)", x.tool, tables, err)
		}
		tables, err = set(2, verdictDrop)
		want := []table{{x.tool, "filter", []effect{{"FORWARD", false, true, nil}}}}
		if d := cmp.Diff(want, tables, cmp.AllowUnexported(table{}, effect{}, portMatch{})); err != nil || d != "" {
			t.Errorf("%s that drops what is forwarded: %v (-want +got):\n%s", x.tool, err, d)
		}
		if tables, err = set(2, -2); err != nil || len(tables) != 0 {
			t.Errorf("%s that accepts again has %+v (%v)", x.tool, tables, err)
		}
		if tables, err = set(1, verdictDrop); err != nil || len(tables) != 0 {
			t.Errorf("%s that drops what is for the host has %+v (%v)", x.tool, tables, err)
		}
	}
}

// To look must not make the tables that it looks for.
func TestXtablesStayAway(t *testing.T) {
	h := newHost(t, 0)
	if holds := h.holds(t, NewReader(Options{})); len(holds) > 0 {
		t.Errorf("held for %v", holds)
	}
	for _, x := range xtables {
		out, err := h.Command(t.Context(), "cat", "/proc/net/"+x.names).Output()
		if err == nil && len(out) > 0 {
			t.Errorf("%s has tables now: %s", x.tool, out)
		}
	}
}
