package main

import (
	"strings"
	"testing"
)

// What the benchmark does is tested in tools/mix.
func TestBenchMixUsage(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"bench mix --rounds -1", "--rounds -1: want 1 or more"},
		{"bench mix --only bulky", "--only bulky: want one of bulk, rr, udp, ack, mix"},
		{"bench mix --order --bytes 10X", "--bytes 10X: want a number like 300M or 10G"},
		{"bench mix --order --bytes 0", "--bytes 0: want"},
		{"bench mix --order --bytes 10000000000G", "--bytes 10000000000G: want"},
		{"bench mix now", "takes no arguments"},
	} {
		c := newConsole(t, nil)
		if code := c.run(t.Context(), strings.Fields(tt.args)...); code != exitUsage {
			t.Errorf("%s: exit code %d, want %d", tt.args, code, exitUsage)
		}
		if !strings.Contains(c.stderr.String(), tt.want) {
			t.Errorf("%s: stderr %q, want %q in it", tt.args, &c.stderr, tt.want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "2k": 2000, "300M": 300e6, "10G": 10e9} {
		if n, err := parseBytes(text); err != nil || n != want {
			t.Errorf("%s is %d, %v, want %d", text, n, err, want)
		}
	}
}
