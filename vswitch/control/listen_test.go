package control_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

func TestListenModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "t.sock")
	// Whatever the umask leaves open.
	defer unix.Umask(unix.Umask(0))
	l, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if info, err := os.Lstat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(names) > 0 {
		t.Errorf("left behind: %q", names)
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("address %q, want %q", got, path)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after closing: %v, want the socket gone", err)
	}
}

func TestListenReplacesStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	l, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestListenRefuses(t *testing.T) {
	dir := t.TempDir()
	live := filepath.Join(dir, "live")
	l, err := control.Listen(live)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ path, want string }{
		{live, "another daemon answers there: stop it first (systemctl stop tapswitchd)"},
		{file, "there is a file that is no socket"},
		{filepath.Join(file, "x"), "not a directory"},
		{filepath.Join(dir, strings.Repeat("x", 120)), "too long for a unix socket"},
	} {
		l, err := control.Listen(tt.path)
		if err == nil {
			l.Close()
			t.Errorf("%s: listens, want an error", tt.path)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "listening on "+tt.path+": ") {
			t.Errorf("%s: error %q, want %q in it", tt.path, err, tt.want)
		}
	}
	if text, _ := os.ReadFile(file); string(text) != "precious" {
		t.Error("the file that was in the way has been changed")
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".*")); len(names) > 0 {
		t.Errorf("left behind: %q", names)
	}
}

// A daemon that ends late must not remove the socket of the one after it.
func TestCloseLeavesSuccessorsSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.sock")
	old, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	successor, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer successor.Close()
	old.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the successor's socket: %v", err)
	}
}

func TestServeEndsWithItsListener(t *testing.T) {
	l, err := control.Listen(filepath.Join(t.TempDir(), "t.sock"))
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, func() { l.Close() })
	if err := control.Serve(t.Context(), l, http.NotFoundHandler()); err == nil {
		t.Error("serving on a closed listener is no error")
	}
}

func TestClientUnreachable(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	absent := filepath.Join(dir, "absent")
	for path, want := range map[string]string{
		absent: "tapswitchd is not running (no socket at " + absent + "): systemctl start tapswitchd",
		stale:  "tapswitchd is not running (nobody answers at " + stale + "): systemctl start tapswitchd",
	} {
		_, err := control.Dial(path).Status(t.Context())
		if u := (*control.UnreachableError)(nil); !errors.As(err, &u) || u.Socket != path || err.Error() != want {
			t.Errorf("error %v, want an UnreachableError %q", err, want)
		}
	}
}

func TestClientCancelled(t *testing.T) {
	c := serve(t, controltest.Sample())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// A daemon that takes connections but hangs, and one that talks nonsense.
func TestClientOddAnswers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("hello")) }, "reading tapswitchd's answer to /v1/status: "},
		{"cut short", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"version":`)) }, "unexpected EOF"},
		{"error without body", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, "tapswitchd answered: 502 Bad Gateway"},
		{"connection closed", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "asking tapswitchd at "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "t.sock")
			l, err := control.Listen(path)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- control.Serve(ctx, l, tt.handler) }()
			c := control.Dial(path)
			_, err = c.Status(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
			c.Close()
			cancel()
			<-done
		})
	}
}
