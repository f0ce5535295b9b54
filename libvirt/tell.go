package libvirt

import (
	"maps"
	"time"
)

// Tell takes a hook's word for a domain that starts, until the daemon gives its own:
// that is locked until the guest runs. It never blocks.
func (w *Watcher) Tell(c HookCall, s HookSubject) {
	if s.Domain == nil {
		w.Look()
		return
	}
	d := *s.Domain
	switch c.Operation {
	case "start", "started", "reconnect": // before, the XML has no taps yet
		d.Running = true
		w.update(func(s *State) {
			s.Domains = maps.Clone(s.Domains)
			if s.Domains == nil {
				s.Domains = map[string]Reading{}
			}
			s.Domains[d.UUID] = Reading{Domain: d, Asked: time.Now()}
		})
	case "stopped", "release":
		w.update(func(s *State) {
			s.Domains = maps.Clone(s.Domains)
			delete(s.Domains, d.UUID)
		})
	}
}
