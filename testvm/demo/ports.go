package demo

import (
	"context"
	"fmt"
	"strings"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A Port is how the daemon serves one port of the bridge.
type Port struct {
	Check
	Port  string       `json:"port"`
	Role  vswitch.Role `json:"role"`
	State string       `json:"state"`
	Hook  string       `json:"hook"`
}

// lookAtPorts checks that a new daemon has found the ports and made them fast.
func (s *scenario) lookAtPorts(ctx context.Context) error {
	status, err := s.api.Status(ctx)
	if err != nil {
		return err
	}
	s.report.Daemon = status.Version
	ports, err := s.api.Ports(ctx)
	if err != nil {
		return err
	}
	s.report.Ports = judgePorts(s.ports(), ports)
	return nil
}

func judgePorts(want []string, have []control.Port) []Port {
	byName := map[string]control.Port{}
	for _, p := range have {
		byName[p.Name] = p
	}
	var rows []Port
	for _, name := range want {
		row := Port{Check: Check{Name: name + " is fast"}, Port: name}
		p, ok := byName[name]
		if !ok {
			row.Seen = "the daemon does not serve the port"
			rows = append(rows, row)
			continue
		}
		row.Role, row.State, row.Hook = p.Role, p.State, p.Hook
		row.OK = p.State == control.StateFast
		row.Seen = fmt.Sprintf("%s by %s", p.State, p.Hook)
		var reasons []string
		for _, h := range p.Held {
			reasons = append(reasons, h.Text)
		}
		if len(reasons) > 0 {
			row.Seen += ": " + strings.Join(reasons, "; ")
		}
		rows = append(rows, row)
	}
	return rows
}
