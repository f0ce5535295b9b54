package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/digitalocean/go-libvirt"
)

// A Session asks a daemon about domains by their names, for a person.
type Session struct{ c *connection }

// Open connects to the target's daemon. The session ends with ctx.
func (t Target) Open(ctx context.Context) (*Session, error) {
	c, err := t.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking libvirt: %w", err)
	}
	context.AfterFunc(ctx, c.close)
	return &Session{c}, nil
}

// Close ends the session.
func (s *Session) Close() { s.c.close() }

// Domain gives a domain's XML: as it runs, or as it is defined if it does not. A
// name that there is not is os.ErrNotExist.
func (s *Session) Domain(name string) (text []byte, running bool, err error) {
	err = s.ask(name, func(d libvirt.Domain) error {
		active, err := s.c.DomainIsActive(d)
		if err != nil {
			return err
		}
		running = active == 1
		xml, err := s.c.DomainGetXMLDesc(d, 0)
		text = []byte(xml)
		return err
	})
	return text, running, err
}

// Definition gives the XML that a domain starts with, with the secrets in it.
func (s *Session) Definition(name string) (text []byte, err error) {
	err = s.ask(name, func(d libvirt.Domain) error {
		persistent, err := s.c.DomainIsPersistent(d)
		if err != nil {
			return err
		}
		if persistent != 1 {
			return fmt.Errorf("it has no definition, and is gone when it stops: %w", os.ErrNotExist)
		}
		xml, err := s.c.DomainGetXMLDesc(d, libvirt.DomainXMLInactive|libvirt.DomainXMLSecure)
		text = []byte(xml)
		return err
	})
	return text, err
}

// Filters asks what the filters of a domain's interfaces mean, and notes it at them.
func (s *Session) Filters(d Domain) error { return newFilterReader(s.c).resolve(d) }

// Define replaces a domain's definition by one of the same name and UUID. It holds
// from the domain's next start on.
func (s *Session) Define(text []byte) error {
	err := s.c.limited(func() error {
		_, err := s.c.DomainDefineXMLFlags(string(text), 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("defining the domain: %w", err)
	}
	return nil
}

// Network gives a network; one that there is not is os.ErrNotExist.
func (s *Session) Network(name string) (Network, error) {
	var text string
	err := s.c.limited(func() error {
		n, err := s.c.NetworkLookupByName(name)
		if err == nil {
			text, err = s.c.NetworkGetXMLDesc(n, 0)
		}
		return err
	})
	if is(err, libvirt.ErrNoNetwork) {
		err = os.ErrNotExist
	}
	if err != nil {
		return Network{}, fmt.Errorf("reading network %s: %w", name, err)
	}
	return ParseNetwork([]byte(text))
}

// is says whether an error is the daemon's word of that kind.
func is(err error, number libvirt.ErrorNumber) bool {
	var e libvirt.Error
	return errors.As(err, &e) && e.Code == uint32(number)
}

// ask looks a domain up and asks about it.
func (s *Session) ask(name string, f func(libvirt.Domain) error) error {
	err := s.c.limited(func() error {
		d, err := s.c.DomainLookupByName(name)
		if err != nil {
			return err
		}
		return f(d)
	})
	if is(err, libvirt.ErrNoDomain) {
		err = fmt.Errorf("libvirt has none of that name: %w", os.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("reading domain %s: %w", name, err)
	}
	return nil
}
