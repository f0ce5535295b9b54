package rules

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const example = `# what is let in
pass from 198.18.1.0/24 proto tcp dport 22
drop from 198.18.0.0/15 to any proto udp dport 53 over 1000/s per-source
drop   proto tcp flags syn,!ack over 500/s	# a flood
drop to 2001:db8::/32 fragment any length 0-100
drop from 198.18.0.1 proto 89
pass proto sctp sport 1000-2000
drop
`

func TestParse(t *testing.T) {
	got, err := Parse(strings.NewReader(example))
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, r := range got {
		text = append(text, fmt.Sprintf("%d %s", r.Line, r))
	}
	want := []string{
		"2 pass from 198.18.1.0/24 proto tcp dport 22",
		"3 drop from 198.18.0.0/15 proto udp dport 53 over 1000/s per-source",
		"4 drop proto tcp flags syn,!ack over 500/s",
		"5 drop to 2001:db8::/32 fragment any length 0-100",
		"6 drop from 198.18.0.1/32 proto 89",
		"7 pass proto sctp sport 1000-2000",
		"8 drop",
	}
	if !slices.Equal(text, want) {
		t.Errorf("the rules are\n%s\nwant\n%s", strings.Join(text, "\n"), strings.Join(want, "\n"))
	}
}

func TestSyntaxErrors(t *testing.T) {
	for _, tt := range []struct {
		text         string
		line, column int
		want         string
	}{
		{"deny", 1, 1, "want drop or pass"},
		{"drop\n\n drop form any", 3, 7, `"form" is not known`},
		{"drop from", 1, 10, "from wants an address"},
		{"drop from 198.18.0.1/15", 1, 11, "want 198.18.0.0/15"},
		{"drop from 198.18.0", 1, 11, "no address or prefix"},
		{"drop from fe80::1%eth0", 1, 11, "no address or prefix"},
		{"drop from ::ffff:198.18.0.1", 1, 11, "write it as IPv4"},
		{"drop from 198.18.0.1 to 2001:db8::1", 1, 22, "different families"},
		{"drop from any from any", 1, 15, "twice"},
		{"drop proto 256", 1, 12, "no protocol"},
		{"drop dport 53", 1, 6, "wants a protocol"},
		{"drop proto icmp sport 53", 1, 17, "wants a protocol"},
		{"drop proto udp dport 65536", 1, 22, "no number"},
		{"drop proto udp dport 5-", 1, 22, "no number"},
		{"drop proto udp dport 5-4", 1, 22, "ends before"},
		{"drop proto udp flags syn", 1, 16, "wants proto tcp"},
		{"drop proto tcp flags syn,nak", 1, 26, `"nak" is no TCP flag`},
		{"drop proto tcp flags syn,!syn", 1, 26, "twice"},
		{"drop fragment some", 1, 15, "no kind of fragment"},
		{"drop over 5", 1, 11, "no rate"},
		{"drop over 0/s", 1, 11, "no rate"},
		{"pass over 5/s", 1, 6, "only a drop rule"},
		{"drop per-source", 1, 6, "wants a rate"},
		{"drop\n" + strings.Repeat("x", maxLine+1), 2, maxLine, "longer than"},
		{strings.Repeat("drop\n", Max+1), Max + 1, 1, "256 at most"},
		{strings.Repeat("drop over 1/s\n", MaxRated+1), MaxRated + 1, 1, "16 at most"},
	} {
		_, err := Parse(strings.NewReader(tt.text))
		syntax := (*SyntaxError)(nil)
		if !errors.As(err, &syntax) {
			t.Errorf("%.40q: no syntax error but %v", tt.text, err)
			continue
		}
		if syntax.Line != tt.line || syntax.Column != tt.column || !strings.Contains(syntax.Text, tt.want) {
			t.Errorf("%.40q: %v; want line %d, column %d, %q", tt.text, err, tt.line, tt.column, tt.want)
		}
	}
}

// What is read can be written, and read again to the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	for line := range strings.Lines(example) {
		f.Add([]byte(line))
	}
	f.Add([]byte("drop from ::/0 to 2001:db8::/128 proto tcp sport 0-65535 dport 1 flags fin,syn,rst,psh,ack,urg,ece,!cwr fragment later length 60 over 1000000000/s per-source"))
	f.Add([]byte("drop from ,! - /"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rules, err := Parse(bytes.NewReader(text))
		if err != nil {
			if syntax := (*SyntaxError)(nil); !errors.As(err, &syntax) || syntax.Line < 1 || syntax.Column < 1 {
				t.Errorf("the error has no place: %v", err)
			}
			return
		}
		if len(rules) > Max {
			t.Errorf("there are %d rules", len(rules))
		}
		for _, r := range rules {
			again, err := Parse(strings.NewReader(r.String()))
			if err != nil || len(again) != 1 || again[0].String() != r.String() {
				t.Errorf("%q is read again as %v, error %v", r, again, err)
			}
			if len(r.String()) > 255 {
				t.Errorf("%q has more than 255 bytes", r)
			}
		}
	})
}
