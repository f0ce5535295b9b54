package libvirt

import (
	"context"
	"fmt"
	"sync"

	"github.com/digitalocean/go-libvirt"
)

// events that may change what a domain is to the switch. All but the first are
// newer than some daemons, and other drivers don't have them. That a guest has
// changed its own address (NIC_RX_FILTER_CHANGED) is not among them: its XML stays
// as it is, and the bridge learns the address as any other.
var events = []libvirt.DomainEventID{
	libvirt.DomainEventIDLifecycle,
	libvirt.DomainEventIDReboot,
	libvirt.DomainEventIDDeviceAdded,
	libvirt.DomainEventIDDeviceRemoved,
	libvirt.DomainEventIDMigrationIteration,
	libvirt.DomainEventIDMetadataChange,
}

// A todo says which domains are to be looked at again. It takes no more room than
// there are domains, however many events there are.
type todo struct {
	mu      sync.Mutex
	domains map[libvirt.UUID]libvirt.Domain
	more    chan struct{} // has room for one
}

func newTodo() *todo {
	return &todo{domains: map[libvirt.UUID]libvirt.Domain{}, more: make(chan struct{}, 1)}
}

func (t *todo) add(d libvirt.Domain) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.domains[d.UUID] = d
	notify(t.more)
}

// take gives the domains that have been added since it was called before.
func (t *todo) take() map[libvirt.UUID]libvirt.Domain {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.domains
	t.domains = map[libvirt.UUID]libvirt.Domain{}
	return taken
}

// notify puts a notice into a channel with room for one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// subscribe makes events add their domain to t, until the connection is closed
// and ctx is done; then done tells when nothing is left of it. Those that come
// while it subscribes may be lost, so look at everything afterwards.
func (c *connection) subscribe(ctx context.Context, t *todo, done *sync.WaitGroup) error {
	for i, id := range events {
		stream, err := c.SubscribeEvents(ctx, id, nil)
		if err != nil {
			if i > 0 && isAnswer(err) {
				continue
			}
			return fmt.Errorf("subscribing to its events: %w", err)
		}
		// To the end, whatever happens: go-libvirt waits until each is taken.
		done.Go(func() {
			for event := range stream {
				if d, ok := domainOf(event); ok {
					t.add(d)
				}
			}
		})
	}
	return nil
}

// domainOf gives the domain that an event is about.
func domainOf(event any) (libvirt.Domain, bool) {
	switch e := event.(type) {
	case *libvirt.DomainEventCallbackLifecycleMsg:
		return e.Msg.Dom, true
	case *libvirt.DomainEventCallbackRebootMsg:
		return e.Msg.Dom, true
	case *libvirt.DomainEventCallbackDeviceAddedMsg:
		return e.Dom, true
	case *libvirt.DomainEventCallbackDeviceRemovedMsg:
		return e.Msg.Dom, true
	case *libvirt.DomainEventCallbackMigrationIterationMsg:
		return e.Dom, true
	case *libvirt.DomainEventCallbackMetadataChangeMsg:
		return e.Dom, true
	}
	return libvirt.Domain{}, false
}
