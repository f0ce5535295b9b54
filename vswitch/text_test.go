package vswitch_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
)

func TestMACText(t *testing.T) {
	for _, tt := range []struct {
		in, want string
		ok       bool
	}{
		{"52:54:00:12:34:56", "52:54:00:12:34:56", true},
		{"5254.0012.3456", "52:54:00:12:34:56", true},
		{"52-54-00-12-34-56", "52:54:00:12:34:56", true},
		{"52:54:00:12:34", "", false},
		{"02:00:5e:10:00:00:00:01", "", false},
		{"", "", false},
	} {
		m, err := vswitch.ParseMAC(tt.in)
		if (err == nil) != tt.ok || tt.ok && m.String() != tt.want {
			t.Errorf("%q: got %s, %v", tt.in, m, err)
		}
	}
}

// TestEnumsRoundTrip writes and reads every named value, and makes sure that a
// number of a newer version still has a name to show.
func TestEnumsRoundTrip(t *testing.T) {
	check := func(v, back any, again func() any) {
		t.Helper()
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, back); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if again() != v {
			t.Errorf("%s came back as %v", text, again())
		}
	}
	names := map[string]bool{}
	for _, v := range vswitch.Verdicts() {
		var back vswitch.Verdict
		check(v, &back, func() any { return back })
		if names[v.String()] || v.Meaning() == "" {
			t.Errorf("verdict %d: name %q is not its own, or it has no meaning", v, v)
		}
		names[v.String()] = true
	}
	for r := vswitch.RoleOther; r <= vswitch.RoleGuest; r++ {
		var back vswitch.Role
		check(r, &back, func() any { return back })
	}
	for o := vswitch.OriginLearned; o <= vswitch.OriginExtern; o++ {
		var back vswitch.Origin
		check(o, &back, func() any { return back })
	}
	for s := vswitch.STPDisabled; s <= vswitch.STPBlocking; s++ {
		var back vswitch.STPState
		check(s, &back, func() any { return back })
	}
	for d := vswitch.Direction(0); d <= vswitch.OutXDP; d++ {
		var back vswitch.Direction
		check(d, &back, func() any { return back })
	}
	if got := vswitch.Verdict(99).String(); got != "unknown(99)" {
		t.Errorf("verdict 99 is %q", got)
	}
	var v vswitch.Verdict
	if err := v.UnmarshalText([]byte("pass_nothing")); err == nil {
		t.Error("an unknown verdict was read")
	}
}

func TestRefreshEvery(t *testing.T) {
	for _, tt := range []struct{ ageing, want time.Duration }{
		{300 * time.Second, 9375 * time.Millisecond},
		{time.Hour, 10 * time.Second},
		{2 * time.Second, 250 * time.Millisecond},
		{0, 0},
	} {
		if got := vswitch.RefreshEvery(tt.ageing); got != tt.want {
			t.Errorf("ageing time %v: got %v, want %v", tt.ageing, got, tt.want)
		}
	}
}
