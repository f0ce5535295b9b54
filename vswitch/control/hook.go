package control

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/tapswitch/tapswitch/vswitch/control/handover"
)

// maxHookXML bounds the XML of a hook, in bytes.
const maxHookXML = 1 << 20

// A Hook is what libvirt tells a hook script: its arguments, and the XML on its
// standard input.
type Hook = handover.Hook

// Hook hands a hook over to the daemon, which has taken it when it returns.
func (c *Client) Hook(_ context.Context, h Hook) error {
	return h.Send(c.socket, answerTimeout, true)
}

// hook takes a hook by POST.
func (s *Server) hook(w http.ResponseWriter, r *http.Request) error {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxHookXML))
	if err != nil {
		return requestError{fmt.Errorf("reading a hook's XML: %w", err)}
	}
	query := r.URL.Query()
	// It counts also if the script has not waited for the answer.
	if err := s.source.Hook(context.WithoutCancel(r.Context()), Hook{
		Driver: query.Get("driver"), Object: query.Get("object"),
		Operation: query.Get("operation"), SubOperation: query.Get("sub_operation"), Extra: query.Get("extra"),
		XML: text,
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
