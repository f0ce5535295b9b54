package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// answerTime is how long the daemon may take for one answer. A guest that starts
// is locked for a second or so, and to ask for it takes as long.
const answerTime = 30 * time.Second

// A connection is one to a daemon. When it is lost, or takes too long to answer,
// lost is closed and all requests fail.
type connection struct {
	*libvirt.Libvirt
	socket string
	wire   *wire
}

// connect connects to the first of the target's sockets that answers.
func (t Target) connect(ctx context.Context) (*connection, error) {
	var errs []error
	uri, sockets := t.where()
	for _, socket := range sockets {
		c, err := connectTo(ctx, uri, socket)
		if err == nil {
			return c, nil
		}
		// The one that is there tells what is wrong.
		if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if errs == nil {
		return nil, fmt.Errorf("no daemon has a socket at %s: %w", strings.Join(sockets, " or "), os.ErrNotExist)
	}
	return nil, errors.Join(errs...)
}

func connectTo(ctx context.Context, uri libvirt.ConnectURI, socket string) (*connection, error) {
	d := net.Dialer{Timeout: answerTime}
	raw, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: raw, lost: make(chan struct{})}
	c := &connection{Libvirt: libvirt.NewWithDialer(w), socket: socket, wire: w}
	stop := context.AfterFunc(ctx, func() { w.Close() })
	defer stop()
	err = c.limited(func() error { return c.ConnectToURI(uri) })
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("opening %s by %s: %w", uri, socket, err)
	}
	return c, nil
}

// limited runs requests, and gives the connection up if they take too long:
// go-libvirt waits for an answer for ever.
func (c *connection) limited(f func() error) error {
	timer := time.AfterFunc(answerTime, func() { c.wire.Close() })
	err := f()
	if !timer.Stop() {
		return fmt.Errorf("it has not answered for %s", answerTime)
	}
	return err
}

// lost is closed when the connection is.
func (c *connection) lost() <-chan struct{} { return c.wire.lost }

// close ends the connection without a word, which the daemon may be too slow for.
func (c *connection) close() { c.wire.Close() }

// A wire is a net.Conn that tells when it is lost, and the dialer of itself. What
// go-libvirt tells is missed if it happens while it connects.
type wire struct {
	net.Conn
	lost chan struct{}
	once sync.Once
}

// Dial gives the connection itself.
func (w *wire) Dial() (net.Conn, error) { return w, nil }

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil {
		w.once.Do(func() { close(w.lost) })
	}
	return n, err
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.lost) })
	return w.Conn.Close()
}
