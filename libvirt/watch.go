package libvirt

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
)

const (
	// lookEvery is how often all domains are read again, in case an event was lost.
	lookEvery = time.Minute
	// lookPause is how long the daemon is left alone after a look at everything.
	lookPause = 100 * time.Millisecond
	// A daemon that is away is tried again after retryFirst, then ever more seldom.
	retryFirst = 50 * time.Millisecond
	retryMost  = 5 * time.Second
)

// A State is what a Watcher knows.
type State struct {
	// Connected says whether the daemon answers; Socket is where, Err why not, Since
	// since when.
	Connected bool
	Socket    string
	Err       error
	Since     time.Time
	// Domains are those that run or are paused, by UUID. While the daemon is away
	// they are as they were: so are the guests.
	Domains map[string]Reading
}

// A Reading is a domain, as it was at Asked or later.
type Reading struct {
	Domain
	Asked time.Time
}

// A Watcher follows the domains of a libvirt daemon. An event only makes it look
// again, so a lost one is repaired by the next look. A daemon that is slow or
// away holds up nobody but Run.
type Watcher struct {
	target  Target
	log     *slog.Logger
	look    chan struct{}
	changed chan struct{}

	mu    sync.Mutex
	state State
}

// NewWatcher makes a watcher, which begins with Run.
func NewWatcher(t Target, log *slog.Logger) *Watcher {
	return &Watcher{
		target: t, log: log,
		look: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		state: State{Err: errors.New("not asked yet"), Since: time.Now()},
	}
}

// State gives what is known now. The maps in it don't change.
func (w *Watcher) State() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Changed tells that the state may be another. It has room for one notice.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Look makes the watcher read all domains again soon. It never blocks.
func (w *Watcher) Look() { notify(w.look) }

func (w *Watcher) update(f func(*State)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.state)
	notify(w.changed)
}

// Run follows the daemon until ctx is done, and connects again whenever it has
// to. It gives nil.
func (w *Watcher) Run(ctx context.Context) error {
	wait := retryFirst
	for {
		connected, err := w.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		w.away(err)
		if connected {
			wait = retryFirst
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, retryMost)
	}
}

// away notes that the daemon does not answer, and says so once.
func (w *Watcher) away(err error) {
	before := w.State()
	if before.Connected || before.Err.Error() != err.Error() {
		w.log.Info("libvirt does not answer; ports follow the kernel alone", "because", err)
	}
	w.update(func(s *State) {
		if s.Connected {
			s.Since = time.Now()
		}
		s.Connected, s.Err = false, err
	})
}

// follow follows the daemon on one connection, until it is lost.
func (w *Watcher) follow(ctx context.Context) (connected bool, err error) {
	c, err := w.target.connect(ctx)
	if err != nil {
		return false, err
	}
	var streams sync.WaitGroup
	defer streams.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.close()
	defer context.AfterFunc(ctx, c.close)()

	t := newTodo()
	if err := c.limited(func() error { return c.subscribe(ctx, t, &streams) }); err != nil {
		return false, err
	}
	if err := w.readAll(c); err != nil {
		return false, err
	}
	w.log.Info("libvirt answers", "socket", c.socket, "domains", len(w.State().Domains))
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var (
		rested = time.NewTimer(lookPause)
		look   <-chan struct{} // once rested
	)
	defer rested.Stop()
	for {
		err = nil
		select {
		case <-c.lost():
			return true, errors.New("the connection was lost")
		case <-rested.C:
			look = w.look
			continue
		case <-look:
			err = w.readAll(c)
			look = nil
			rested.Reset(lookPause)
		case <-tick.C:
			err = w.readAll(c)
		case <-t.more:
			for _, d := range t.take() {
				if err = w.readOne(c, d); err != nil {
					break
				}
			}
		}
		if err != nil {
			return true, err
		}
	}
}

// readAll reads all domains, and forgets those that are no more.
func (w *Watcher) readAll(c *connection) error {
	var domains []libvirt.Domain
	err := c.limited(func() (err error) {
		domains, _, err = c.ConnectListAllDomains(1, libvirt.ConnectListDomainsActive)
		return err
	})
	if err != nil {
		return fmt.Errorf("listing the domains: %w", err)
	}
	next, filters := map[string]Reading{}, newFilterReader(c)
	for _, d := range domains {
		if r, ok, err := w.read(c, filters, d); err != nil {
			return err
		} else if ok {
			next[r.UUID] = r
		}
	}
	w.update(func(s *State) {
		if !s.Connected {
			s.Since = time.Now()
		}
		s.Connected, s.Socket, s.Err, s.Domains = true, c.socket, nil, next
	})
	return nil
}

// readOne reads a domain again.
func (w *Watcher) readOne(c *connection, d libvirt.Domain) error {
	r, ok, err := w.read(c, newFilterReader(c), d)
	if err != nil {
		return err
	}
	w.update(func(s *State) {
		s.Domains = maps.Clone(s.Domains)
		if ok {
			s.Domains[r.UUID] = r
		} else {
			delete(s.Domains, uuidText(d.UUID))
		}
	})
	return nil
}

// read reads a domain; ok says whether it runs or is paused. XML that can't be
// read counts as that of a domain without interfaces.
func (w *Watcher) read(c *connection, filters *filterReader, d libvirt.Domain) (r Reading, ok bool, err error) {
	r.Asked = time.Now()
	var (
		state int32
		text  string
	)
	err = c.limited(func() (err error) {
		if state, _, err = c.DomainGetState(d, 0); err == nil && active(libvirt.DomainState(state)) {
			text, err = c.DomainGetXMLDesc(d, 0)
		}
		return err
	})
	switch {
	case isAnswer(err): // it has just gone
		return r, false, nil
	case err != nil:
		return r, false, fmt.Errorf("reading domain %s: %w", d.Name, err)
	case text == "":
		return r, false, nil
	}
	if r.Domain, err = ParseDomain([]byte(text)); err != nil {
		w.log.Warn("ignoring the interfaces of a domain", "domain", d.Name, "error", err)
		r.Domain = Domain{Name: d.Name}
	}
	if err := filters.resolve(r.Domain); err != nil {
		return r, false, err
	}
	r.UUID = uuidText(d.UUID)
	r.Running, r.Paused = true, libvirt.DomainState(state) == libvirt.DomainPaused
	return r, true, nil
}

func active(s libvirt.DomainState) bool {
	return !slices.Contains([]libvirt.DomainState{libvirt.DomainShutoff, libvirt.DomainCrashed, libvirt.DomainNostate}, s)
}

// isAnswer says whether an error is the daemon's word, such as that there is no
// such domain, and not a broken connection.
func isAnswer(err error) bool {
	return errors.As(err, &libvirt.Error{}) || errors.Is(err, libvirt.ErrUnsupported)
}

// uuidText gives a UUID in the form in which libvirt's XML has it.
func uuidText(u libvirt.UUID) string {
	h := hex.EncodeToString(u[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
