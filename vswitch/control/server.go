package control

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control/handover"
)

// A Server answers the API's requests out of a Switch.
type Server struct {
	source  Switch
	paths   map[string]endpoint
	metrics http.Handler
	// big lets one big answer be made at a time: a snapshot of a full FDB takes
	// some MB, and the daemon's memory must not depend on who asks how often.
	big chan struct{}
}

var _ http.Handler = (*Server)(nil)

// An endpoint answers on one path. It gives an error only before it has written
// anything.
type endpoint struct {
	method string // GET if empty
	params []string
	answer func(context.Context, http.ResponseWriter, url.Values) error
	take   func(http.ResponseWriter, *http.Request) error // in place of answer, for a request with a body
}

// NewServer makes a server for the control socket; see Listen and Serve. With a
// gatherer it answers /metrics too.
func NewServer(src Switch, g prometheus.Gatherer) *Server {
	s := &Server{source: src, big: make(chan struct{}, 1)}
	if g != nil {
		s.metrics = NewMetricsHandler(g)
	}
	s.paths = map[string]endpoint{
		"/v1/status": {answer: s.status},
		"/v1/ports":  {answer: s.ports},
		"/v1/fdb":    {answer: s.fdb, params: []string{"bridge", "mac", "port"}},
		"/v1/drops":  {answer: s.drops},
		"/v1/stats":  {answer: s.stats},
		"/v1/pause":  {answer: s.pause, method: http.MethodPost, params: []string{"name", "for"}},
		"/v1/resume": {answer: s.resume, method: http.MethodPost, params: []string{"name"}},

		handover.HookPath: {take: s.hook, method: http.MethodPost, params: handover.HookParams},
	}
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e, ok := s.paths[r.URL.Path]
	if want := cmp.Or(e.method, http.MethodGet); r.Method != want {
		w.Header().Set("Allow", want)
		writeError(w, http.StatusMethodNotAllowed, fmt.Errorf("%s is not allowed on %s: use %s", r.Method, r.URL.Path, want))
		return
	}
	if r.URL.Path == "/metrics" && s.metrics != nil {
		s.metrics.ServeHTTP(w, r)
		return
	}
	if !ok {
		writeError(w, http.StatusNotFound, fmt.Errorf("no path %s: this daemon answers %s", r.URL.Path, strings.Join(s.known(), ", ")))
		return
	}
	err := e.check(r.URL.RawQuery)
	switch {
	case err != nil:
	case e.take != nil:
		err = e.take(w, r)
	default:
		err = e.answer(r.Context(), w, r.URL.Query())
	}
	if err != nil {
		writeError(w, statusOf(err), err)
	}
}

func (s *Server) known() []string {
	paths := []string{}
	for p := range s.paths {
		paths = append(paths, p)
	}
	if s.metrics != nil {
		paths = append(paths, "/metrics")
	}
	slices.Sort(paths)
	return paths
}

// A requestError is the asker's fault.
type requestError struct{ error }

// BadRequest marks an error as the asker's fault.
func BadRequest(err error) error { return requestError{err} }

func (e requestError) Unwrap() error { return e.error }

// check refuses parameters that the endpoint would pass over in silence.
func (e endpoint) check(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return requestError{fmt.Errorf("reading query: %w", err)}
	}
	for name, v := range values {
		if !slices.Contains(e.params, name) {
			return requestError{fmt.Errorf("unknown parameter %q: want one of %q", name, e.params)}
		}
		if len(v) > 1 {
			return requestError{fmt.Errorf("parameter %q is given %d times, want once", name, len(v))}
		}
	}
	return nil
}

func statusOf(err error) int {
	switch {
	case errors.As(err, new(requestError)):
		return http.StatusBadRequest
	case errors.Is(err, os.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func (s *Server) status(ctx context.Context, w http.ResponseWriter, _ url.Values) error {
	st, err := s.source.Status(ctx)
	if err != nil {
		return err
	}
	st.Bridges, st.Warnings = notNil(st.Bridges), notNil(st.Warnings)
	return writeObject(w, st)
}

func (s *Server) pause(ctx context.Context, w http.ResponseWriter, query url.Values) error {
	d := DefaultPause
	if text := query.Get("for"); text != "" {
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			return requestError{fmt.Errorf("reading how long to pause: want a duration like 60s, have %q", text)}
		}
	}
	if d < MinPause || d > MaxPause {
		return requestError{fmt.Errorf("pausing for %s: want %s to %s", d, MinPause, MaxPause)}
	}
	name, err := s.deviceName(ctx, query)
	if err != nil {
		return err
	}
	p, err := s.source.Pause(ctx, name, d)
	if err != nil {
		return err
	}
	return writeObject(w, p)
}

func (s *Server) resume(ctx context.Context, w http.ResponseWriter, query url.Values) error {
	name, err := s.deviceName(ctx, query)
	if err != nil {
		return err
	}
	p, err := s.source.Resume(ctx, name)
	if err != nil {
		return err
	}
	return writeObject(w, p)
}

// deviceName gives the request's port or bridge, if the switch has it.
func (s *Server) deviceName(ctx context.Context, query url.Values) (string, error) {
	name := query.Get("name")
	if name == "" {
		return "", requestError{errors.New("which port or bridge is meant? Give its name as name=NAME")}
	}
	ports, err := s.source.Ports(ctx)
	if err != nil {
		return "", err
	}
	var names []string
	for _, p := range ports {
		if !slices.Contains(names, p.Bridge) {
			names = append(names, p.Bridge)
		}
	}
	for _, p := range ports {
		names = append(names, p.Name)
	}
	return name, absent("port or bridge", name, names)
}

func (s *Server) ports(ctx context.Context, w http.ResponseWriter, _ url.Values) error {
	ports, err := s.source.Ports(ctx)
	for i := range ports {
		ports[i].Held = notNil(ports[i].Held)
	}
	return writeList(w, ports, err)
}

func (s *Server) drops(ctx context.Context, w http.ResponseWriter, _ url.Values) error {
	drops, err := s.source.Drops(ctx)
	return writeList(w, drops, err)
}

func (s *Server) stats(ctx context.Context, w http.ResponseWriter, _ url.Values) error {
	stats, err := s.source.Stats(ctx)
	for i := range stats {
		stats[i].Verdicts, stats[i].Merged = notNil(stats[i].Verdicts), notNil(stats[i].Merged)
	}
	return writeList(w, stats, err)
}

func (s *Server) fdb(ctx context.Context, w http.ResponseWriter, query url.Values) error {
	filter := FDBFilter{Bridge: query.Get("bridge"), Port: query.Get("port")}
	if mac := query.Get("mac"); mac != "" {
		var err error
		if filter.MAC, err = vswitch.ParseMAC(mac); err != nil {
			return requestError{err}
		}
	}
	if err := s.checkFilter(ctx, filter); err != nil {
		return err
	}
	select {
	case s.big <- struct{}{}:
		defer func() { <-s.big }()
	case <-ctx.Done():
		return ctx.Err()
	}
	entries, err := s.source.FDB(ctx, filter)
	if len(entries) > bigFDB {
		// The largest thing that the daemon ever makes; few ask for it.
		defer debug.FreeOSMemory()
	}
	return writeList(w, entries, err)
}

// bigFDB is from how many entries on an answer's memory is worth giving back.
const bigFDB = 4096

// checkFilter refuses a filter by what does not exist, so that nobody takes a
// misspelt name for an empty table.
func (s *Server) checkFilter(ctx context.Context, f FDBFilter) error {
	if f.Bridge != "" {
		st, err := s.source.Status(ctx)
		if err != nil {
			return err
		}
		var names []string
		for _, b := range st.Bridges {
			names = append(names, b.Name)
		}
		if err := absent("bridge", f.Bridge, names); err != nil {
			return err
		}
	}
	if f.Port != "" && f.Port != HostPort {
		ports, err := s.source.Ports(ctx)
		if err != nil {
			return err
		}
		var names []string
		for _, p := range ports {
			names = append(names, p.Name)
		}
		return absent("port", f.Port, names)
	}
	return nil
}

// absent gives an error if the name is none of those that there are.
func absent(what, name string, names []string) error {
	if slices.Contains(names, name) {
		return nil
	}
	const most = 10
	there := "none"
	if len(names) > 0 {
		there = strings.Join(names[:min(len(names), most)], ", ")
	}
	if len(names) > most {
		there += ", …"
	}
	return fmt.Errorf("no %s %s in the switch, which has %s: %w", what, name, there, os.ErrNotExist)
}

const jsonType = "application/json"

func writeObject(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", jsonType)
	// An error here is the asker's having gone away.
	_ = json.NewEncoder(w).Encode(v)
	return nil
}

// writeList writes a list element by element, so that its text is never in
// memory as a whole. It passes on err, for brevity in its callers.
func writeList[T any](w http.ResponseWriter, list []T, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", jsonType)
	b := bufio.NewWriterSize(w, 16<<10)
	enc := json.NewEncoder(b)
	b.WriteByte('[')
	for i := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		// A short answer is no list: the client sees that it ends too early.
		if enc.Encode(&list[i]) != nil {
			return nil
		}
	}
	b.WriteString("]\n")
	_ = b.Flush()
	return nil
}

func writeError(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(handover.ErrorBody{Error: err.Error()})
}

// notNil makes an empty list an empty list in JSON, not null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
