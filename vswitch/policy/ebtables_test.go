package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
			want:   []effect{{"FORWARD", true, false}},
		},
		{name: "forward drops", chains: [][]byte{ebtChain("INPUT", accept, 1), ebtChain("FORWARD", ebtDrop, 0)}, want: []effect{{"FORWARD", false, true}}},
	} {
		var entries []byte
		for _, c := range tt.chains {
			entries = append(entries, c...)
		}
		got, err := ebtParse(entries, ebtTables[0].chains)
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(effect{})); err != nil || d != "" {
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
