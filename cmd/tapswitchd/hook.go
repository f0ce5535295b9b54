package main

import (
	"context"

	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// Hook takes what libvirt tells of a domain or network as it starts or stops.
func (s source) Hook(_ context.Context, h control.Hook) error {
	call := libvirt.HookCall{Driver: h.Driver, Object: h.Object, Operation: h.Operation, SubOperation: h.SubOperation, Extra: h.Extra}
	subject, err := call.ParseHook(h.XML)
	if err != nil {
		s.log.Warn("ignoring a hook of libvirt's", "driver", h.Driver, "object", h.Object, "operation", h.Operation, "error", err)
		return control.BadRequest(err)
	}
	if w := s.domains.watcher; w != nil {
		w.Tell(call, subject)
	}
	return nil
}
