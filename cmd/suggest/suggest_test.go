package suggest

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"uplinks", "socket", "log", "lease"}
	for _, tt := range []struct{ word, want string }{
		{"uplink", "uplinks"},
		{"Uplnks", "uplinks"},
		{"sokcet", "socket"},
		{"logs", "log"},
		{"lg", "log"},
		{"lease", "lease"},
		{"bridges", ""},
		{"x", ""},
		{"", ""},
	} {
		got, ok := Nearest(tt.word, known)
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("Nearest(%q) = %q, %t, want %q", tt.word, got, ok, tt.want)
		}
	}
}

func TestNearestOfEquals(t *testing.T) {
	for _, known := range [][]string{{"drops", "ports"}, {"ports", "drops"}} {
		if got, _ := Nearest("prots", known); got != "ports" {
			t.Errorf("Nearest(prots) of %q = %q, want ports", known, got)
		}
	}
}

func TestHint(t *testing.T) {
	known := []string{"ports", "status"}
	if got, want := Hint("port", known), `did you mean "ports"?`; got != want {
		t.Errorf("Hint(port) = %q, want %q", got, want)
	}
	if got, want := Hint("frobnicate", known), "want one of ports, status"; got != want {
		t.Errorf("Hint(frobnicate) = %q, want %q", got, want)
	}
}
