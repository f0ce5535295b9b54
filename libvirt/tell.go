package libvirt

import (
	"maps"
	"slices"
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
			d.keepFilters(s.Domains[d.UUID].Domain)
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

// keepFilters takes over what is known of the same filters of the same interfaces.
func (d Domain) keepFilters(before Domain) {
	for _, n := range d.Interfaces {
		for _, old := range before.Interfaces {
			if f, was := n.Filter, old.Filter; f != nil && was != nil && n.MAC == old.MAC && f.Name == was.Name && maps.EqualFunc(f.Parameters, was.Parameters, slices.Equal) {
				f.Known, f.Unclear = was.Known, was.Unclear
			}
		}
	}
}
