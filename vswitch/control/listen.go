package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch/control/handover"
)

// DefaultSocket is where the daemon listens if it is told nothing else.
const DefaultSocket = handover.DefaultSocket

// maxSocketPath is what fits into sockaddr_un with a NUL.
const maxSocketPath = 107

// Listen makes the control socket at path, which only its owner can open. The
// directory is made, with mode 0700, if it is not there. A socket that a daemon
// has left behind is replaced; one on which somebody answers, or a file of
// another kind, is an error. Closing the listener removes the socket.
func Listen(path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return l, nil
}

func listen(path string) (_ net.Listener, err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := vacant(path); err != nil {
		return nil, err
	}
	// Made in a private directory and moved into place, so that nobody can open
	// it before it has its mode.
	private, err := os.MkdirTemp(dir, ".s")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	made := filepath.Join(private, "s")
	if n := max(len(made), len(path)); n > maxSocketPath {
		return nil, fmt.Errorf("the path is %d bytes too long for a unix socket: choose a shorter one by socket in the configuration", n-maxSocketPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if err := os.Chmod(made, 0o600); err != nil {
		return nil, err
	}
	info, err := os.Lstat(made)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(made, path); err != nil {
		return nil, err
	}
	return &listener{UnixListener: l, path: path, info: info}, nil
}

// vacant gives an error unless a socket may be put at path.
func vacant(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file that is no socket: remove it, or choose another path by socket in the configuration")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil // left behind
	}
	if err != nil {
		return err
	}
	conn.Close()
	return errors.New("another daemon answers there: stop it first (systemctl stop tapswitchd)")
}

// A listener removes its socket when it is closed, if it is still its own.
type listener struct {
	*net.UnixListener
	path   string
	info   fs.FileInfo
	remove sync.Once
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *listener) Close() error {
	l.remove.Do(func() {
		if info, err := os.Lstat(l.path); err == nil && os.SameFile(info, l.info) {
			os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// Serve answers requests on l by h until ctx is done, then lets those under way
// finish for up to a second, closes l and gives nil. An error means that it can't
// go on listening.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if s.Shutdown(grace) != nil {
			s.Close()
		}
	})
	err := s.Serve(l)
	if !stop() {
		<-stopped
		return nil
	}
	return fmt.Errorf("serving on %s: %w", l.Addr(), err)
}
