package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// pauses say until when a person has sent a port's frames, or those of all ports
// of a bridge, by the bridge. They are keyed by ifindex, because names come back
// with other devices. A restart ends them all: whoever restarts the daemon wants
// it to work as configured, and a pause is not worth a file.
type pauses map[int]time.Time

// holds gives the reasons of those that have not ended.
func (p pauses) holds(now time.Time) map[int][]vswitch.HoldReason {
	holds := map[int][]vswitch.HoldReason{}
	for ifindex, until := range p {
		if !now.Before(until) {
			continue
		}
		reason := vswitch.Hold(vswitch.HoldPaused, "paused by hand until %s; 'tapswitch resume' ends it sooner", until.Format(time.TimeOnly))
		reason.Until = until
		holds[ifindex] = []vswitch.HoldReason{reason}
	}
	return holds
}

// expire forgets pauses that have ended or whose device has gone, and says
// whether there were any.
func (p pauses) expire(now time.Time, there func(ifindex int) bool) (any bool) {
	for ifindex, until := range p {
		if !now.Before(until) || !there(ifindex) {
			delete(p, ifindex)
			any = true
		}
	}
	return any
}

// endPauses forgets pauses that are over, and says whether there were any.
func (s *service) endPauses() bool {
	return s.pauses.expire(time.Now(), func(ifindex int) bool {
		_, port := s.mirror.Ports[ifindex]
		_, bridge := s.mirror.Bridges[ifindex]
		return port || bridge
	})
}

// named gives the port or bridge of that name, and the ports that a pause of it
// concerns.
func (s source) named(name string) (control.Pause, error) {
	p := control.Pause{Name: name}
	for _, port := range s.sortedPorts() {
		switch name {
		case port.Name:
			return control.Pause{Name: name, Ifindex: port.Ifindex, Ports: []string{name}}, nil
		case s.plan.Bridges[port.Bridge].Name:
			p.Ifindex = port.Bridge
			p.Ports = append(p.Ports, port.Name)
		}
	}
	if p.Ifindex == 0 {
		return p, fmt.Errorf("no port or bridge %s in the switch: %w", name, os.ErrNotExist)
	}
	return p, nil
}

var errBehind = errors.New("the datapath could not be brought in step: journalctl -u tapswitchd says why")

// Pause closes the ports at once: frames that are on their way are delivered.
func (s source) Pause(ctx context.Context, name string, d time.Duration) (control.Pause, error) {
	return ask(ctx, s, func() (control.Pause, error) {
		p, err := s.named(name)
		if err != nil {
			return p, err
		}
		p.Until = time.Now().Add(d).Round(0) // without the monotonic clock: it is shown and compared
		s.pauses[p.Ifindex] = p.Until
		s.log.Info("paused", "name", name, "ifindex", p.Ifindex, "until", p.Until)
		if s.reconcile(); s.behind {
			return p, errBehind
		}
		return p, nil
	})
}

func (s source) Resume(ctx context.Context, name string) (control.Pause, error) {
	return ask(ctx, s, func() (control.Pause, error) {
		p, err := s.named(name)
		if err != nil {
			return p, err
		}
		_, p.Ended = s.pauses[p.Ifindex]
		delete(s.pauses, p.Ifindex)
		for ifindex, port := range s.plan.Ports {
			switch p.Ifindex {
			case port.Bridge: // all that belongs to it
				_, paused := s.pauses[ifindex]
				p.Ended = p.Ended || paused
				delete(s.pauses, ifindex)
			case ifindex:
				if until, paused := s.pauses[port.Bridge]; paused {
					p.Still, p.Until = s.plan.Bridges[port.Bridge].Name, until
				}
			}
		}
		if !p.Ended {
			return p, nil
		}
		s.log.Info("resumed", "name", name, "ifindex", p.Ifindex)
		if s.reconcile(); s.behind {
			return p, errBehind
		}
		return p, nil
	})
}
