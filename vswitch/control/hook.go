package control

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// maxHookXML bounds the XML of a hook, in bytes.
const maxHookXML = 1 << 20

// A Hook is what libvirt tells a hook script: its arguments, and the XML on its
// standard input.
type Hook struct {
	Driver       string // "qemu" or "network"
	Object       string // name of the domain or network
	Operation    string // "prepare", "started", …
	SubOperation string
	Extra        string
	XML          []byte // at most 1 MB
}

// Hook hands a hook over to the daemon.
func (c *Client) Hook(ctx context.Context, h Hook) error {
	query := url.Values{"driver": {h.Driver}, "object": {h.Object}, "operation": {h.Operation}, "sub_operation": {h.SubOperation}, "extra": {h.Extra}}
	return c.ask(ctx, http.MethodPost, hookPath, query, h.XML, nil)
}

const hookPath = "/v1/hook"

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
