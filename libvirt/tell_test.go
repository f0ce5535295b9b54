package libvirt

import (
	"log/slog"
	"testing"
	"time"
)

func TestTell(t *testing.T) {
	w := NewWatcher(Target{}, slog.New(slog.DiscardHandler))
	domain := &Domain{UUID: "u", Name: "web", Interfaces: []Interface{{Type: "bridge", Target: "vnet0"}}}
	for _, tt := range []struct {
		operation string
		known     bool
	}{
		{"prepare", false}, {"start", true}, {"started", true}, {"migrate", true}, {"stopped", false}, {"release", false}, {"reconnect", true},
	} {
		before := w.State().Domains
		n := len(before)
		began := time.Now()
		w.Tell(HookCall{Driver: HookQEMU, Operation: tt.operation}, HookSubject{Domain: domain})
		r, known := w.State().Domains["u"]
		if known != tt.known {
			t.Errorf("after %s the domain is known: %v, want %v", tt.operation, known, tt.known)
		}
		if len(before) != n {
			t.Errorf("%s changes a map that was given out", tt.operation)
		}
		if tt.operation == "start" && (!r.Running || r.Asked.Before(began) || r.Interfaces[0].Target != "vnet0") {
			t.Errorf("after start the domain is %+v", r)
		}
	}
	select {
	case <-w.Changed():
	default:
		t.Error("nobody is told of the change")
	}
	w.Tell(HookCall{Driver: HookNetwork, Operation: "updated"}, HookSubject{Network: &Network{}})
	select {
	case <-w.look:
	default:
		t.Error("a network's change makes nobody look again")
	}
}
