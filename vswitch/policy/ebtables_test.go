package policy

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

func ebtChain(name string, policy int32, rules int) []byte {
	b := make([]byte, ebtChainLen)
	copy(b[ebtChainName:], name)
	native.PutUint32(b[ebtChainPolicy:], uint32(policy))
	native.PutUint32(b[ebtChainRules:], uint32(rules))
	for range rules {
		rule := make([]byte, 160)
		native.PutUint32(rule, 1) // EBT_ENTRY_OR_ENTRIES
		native.PutUint32(rule[ebtNext:], uint32(len(rule)))
		b = append(b, rule...)
	}
	return b
}

// ebtRules makes a chain whose rules name devices, in and out by turns.
func ebtRules(name string, policy int32, inverted uint32, devices ...[2]string) []byte {
	b := ebtChain(name, policy, len(devices))
	for i, d := range devices {
		rule := b[ebtChainLen+160*i:]
		copy(rule[ebtIn:], d[0])
		copy(rule[ebtOut:], d[1])
		native.PutUint32(rule[ebtInvert:], inverted)
	}
	return b
}

// libvirt's filters are rules for a guest's tap, which must not hold others back.
func TestEbtablesPorts(t *testing.T) {
	const accept = -1
	in := func(name string, prefix bool) portMatch {
		return portMatch{deviceMatch: deviceMatch{name, prefix}, direction: vswitch.In}
	}
	out := func(name string) portMatch {
		return portMatch{deviceMatch: deviceMatch{name: name}, direction: vswitch.Out}
	}
	for _, tt := range []struct {
		name  string
		chain []byte
		want  []portMatch
	}{
		{"in", ebtRules("PREROUTING", accept, 0, [2]string{"vnet0"}, [2]string{"vnet1"}), []portMatch{in("vnet0", false), in("vnet1", false)}},
		{"out", ebtRules("POSTROUTING", accept, 0, [2]string{"", "vnet0"}), []portMatch{out("vnet0")}},
		{"both", ebtRules("POSTROUTING", accept, 0, [2]string{"vnet0", "vnet1"}), []portMatch{in("vnet0", false)}},
		{"a wildcard", ebtRules("PREROUTING", accept, 0, [2]string{"vnet\x01"}), []portMatch{in("vnet", true)}},
		{"one names none", ebtRules("PREROUTING", accept, 0, [2]string{"vnet0"}, [2]string{}, [2]string{"vnet1"}), nil},
		{"all but one", ebtRules("PREROUTING", accept, ebtInvertIn, [2]string{"vnet0"}), nil},
		{"all but one in, one out", ebtRules("POSTROUTING", accept, ebtInvertIn, [2]string{"vnet0", "vnet1"}), []portMatch{out("vnet1")}},
		{"the rest is dropped", ebtRules("PREROUTING", ebtDrop, 0, [2]string{"vnet0"}), nil},
	} {
		// What comes after the chain's own rules is not its own.
		entries := append(tt.chain, ebtChain("libvirt-I-vnet0", accept, 2)...)
		got, err := ebtParse(entries, ebtTables[1].chains)
		if err != nil || len(got) != 1 {
			t.Errorf("%s: %v, %v, want one chain", tt.name, got, err)
			continue
		}
		if d := cmp.Diff(tt.want, got[0].ports, cmp.AllowUnexported(portMatch{}, deviceMatch{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

// Distributions' kernels have legacy ebtables, but not every kernel for tests.
func TestEbtables(t *testing.T) {
	const accept = -1
	for _, tt := range []struct {
		name   string
		chains [][]byte
		want   []effect
	}{
		{name: "empty", chains: [][]byte{ebtChain("INPUT", accept, 0), ebtChain("FORWARD", accept, 0), ebtChain("OUTPUT", accept, 0)}},
		{name: "input alone", chains: [][]byte{ebtChain("INPUT", ebtDrop, 3), ebtChain("FORWARD", accept, 0), ebtChain("OUTPUT", accept, 1)}},
		{
			name:   "forward has rules",
			chains: [][]byte{ebtChain("INPUT", accept, 2), ebtChain("FORWARD", accept, 2), ebtChain("OUTPUT", accept, 0), ebtChain("I-vnet0-mac", accept, 5)},
			want:   []effect{{"FORWARD", true, false, nil}},
		},
		{name: "forward drops", chains: [][]byte{ebtChain("INPUT", accept, 1), ebtChain("FORWARD", ebtDrop, 0)}, want: []effect{{"FORWARD", false, true, nil}}},
	} {
		var entries []byte
		for _, c := range tt.chains {
			entries = append(entries, c...)
		}
		got, err := ebtParse(entries, ebtTables[0].chains)
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(effect{}, portMatch{}, deviceMatch{})); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, d)
		}
	}
	whole := ebtChain("FORWARD", accept, 1)
	endless := ebtChain("FORWARD", accept, 1)
	native.PutUint32(endless[ebtChainLen+ebtNext:], 0)
	for name, b := range map[string][]byte{"a chain cut short": whole[:20], "a rule cut short": whole[:ebtChainLen+20], "a rule without end": endless, "a word cut short": whole[:2]} {
		if chains, err := ebtParse(b, ebtTables[0].chains); err == nil {
			t.Errorf("%s is a table: %v", name, chains)
		}
	}
}

// The kernel's own table, where it is loaded.
func TestEbtablesOfKernel(t *testing.T) {
	if !moduleLoaded("ebtable_filter") {
		t.Skip("this kernel has no ebtables loaded")
	}
	h := newHost(t, 0)
	read := func() (tables []table) {
		err := h.Do(func() (err error) { tables, err = new(ebtables).read(); return err })
		if err != nil {
			t.Fatal(err)
		}
		return tables
	}
	if tables := read(); len(tables) != 0 {
		t.Errorf("a table without rules is %+v", tables)
	}
	if err := h.Do(ebtDropForwarded); err != nil {
		t.Fatal(err)
	}
	want := []table{{toolEB, "filter", []effect{{chain: "FORWARD", drops: true}}}}
	if d := cmp.Diff(want, read(), cmp.AllowUnexported(table{}, effect{})); d != "" {
		t.Errorf("a table that drops what is forwarded (-want +got):\n%s", d)
	}
}

// ebtDropForwarded changes the policy of FORWARD in the filter table, which has no
// rules.
func ebtDropForwarded() error {
	const setEntries, hookEntry, forward = 128, 48, 2
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	replace := make([]byte, ebtReplaceLen)
	copy(replace, "filter")
	if err := getsockopt(fd, unix.SOL_IP, ebtGetInfo, replace); err != nil {
		return err
	}
	entries := make([]byte, native.Uint32(replace[ebtSize:]))
	if err := ebtFill(fd, replace, entries); err != nil {
		return err
	}
	native.PutUint32(entries[(forward-1)*ebtChainLen+ebtChainPolicy:], 1<<32+ebtDrop)
	both := append(replace, entries...)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&both[0])
	at := uint64(uintptr(unsafe.Pointer(&both[ebtReplaceLen])))
	native.PutUint64(both[ebtBuffer:], at)
	// The chains of input, forward and output lie one behind the other.
	for hook := range uint64(3) {
		native.PutUint64(both[hookEntry+8*(hook+1):], at+hook*ebtChainLen)
	}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_IP, setEntries,
		uintptr(unsafe.Pointer(&both[0])), uintptr(len(both)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
