package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// NICConfig tells a daemon that the lab's veth stands for a NIC: frames on it are
// complete (see Options.WireOffloads).
const NICConfig = `uplinks = ["` + NIC + `"]
xdp = "always"`

// DaemonOptions say how a Daemon runs. Path must be set.
type DaemonOptions struct {
	Path string   // of the tapswitchd to run
	Args []string // beside those for configuration and pins
	// Config is the text of its configuration, without the socket's path.
	Config string
	// Name tells the daemons of several hosts apart; a daemon started anew with
	// the same name adopts what the one before left.
	Name string
	// Log receives its log too; Daemon.Log has its end in any case.
	Log io.Writer
}

// A Daemon is a tapswitchd that runs inside a node and has said that it is ready.
type Daemon struct {
	Socket string // of its control API
	Pins   string

	cmd    *Cmd
	log    *tail
	exited chan struct{}
	err    error // once exited is closed
}

// StartDaemon starts a tapswitchd inside the node and waits until it is ready,
// which it tells as it tells systemd. It fails with the daemon's log if the
// daemon ends before.
func (n *Node) StartDaemon(ctx context.Context, o DaemonOptions) (*Daemon, error) {
	dir := filepath.Join("/run/tapswitch-lab", o.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the daemon's directory: %w", err)
	}
	d := &Daemon{
		Socket: filepath.Join(dir, "control.sock"),
		Pins:   filepath.Join("/sys/fs/bpf", "tapswitch"+o.Name),
		log:    &tail{also: o.Log},
		exited: make(chan struct{}),
	}
	config := filepath.Join(dir, "tapswitch.toml")
	text := fmt.Sprintf("socket = %q\n%s\n", d.Socket, o.Config)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("writing the daemon's configuration: %w", err)
	}
	notify, err := listenNotify(filepath.Join(dir, "notify.sock"))
	if err != nil {
		return nil, err
	}
	defer notify.Close()
	d.cmd = n.Command(context.WithoutCancel(ctx), o.Path, append([]string{"-config", config, "-pins", d.Pins}, o.Args...)...)
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify.LocalAddr().String())
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", o.Path, err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.exited)
		notify.Close()
	}()
	stop := context.AfterFunc(ctx, func() { notify.Close() })
	defer stop()
	if err := awaitReady(notify); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("waiting for the daemon to be ready: %w", ctx.Err())
		}
		return nil, errors.Join(err, d.Kill(), errors.New(d.log.String()))
	}
	return d, nil
}

func listenNotify(path string) (*net.UnixConn, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing an old notify socket: %w", err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listening for the daemon's notice: %w", err)
	}
	return conn, nil
}

func awaitReady(conn *net.UnixConn) error {
	b := make([]byte, 4096)
	for {
		n, err := conn.Read(b)
		if err != nil {
			return errors.New("the daemon ended before it was ready")
		}
		for line := range strings.Lines(string(b[:n])) {
			if strings.TrimSpace(line) == "READY=1" {
				return nil
			}
		}
	}
}

// PID gives the daemon's process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Log gives the end of what the daemon has logged.
func (d *Daemon) Log() string { return d.log.String() }

// Signal sends a signal to the daemon.
func (d *Daemon) Signal(s syscall.Signal) error { return d.cmd.Process.Signal(s) }

// Exited is closed when the daemon has ended.
func (d *Daemon) Exited() <-chan struct{} { return d.exited }

// Stop tells the daemon to stop as systemd does, and waits for its end. The error
// has its log if it did not end well.
func (d *Daemon) Stop() error {
	if err := d.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the daemon: %w", err)
	}
	<-d.exited
	if d.err != nil {
		return fmt.Errorf("the daemon stopped: %w\n%s", d.err, d.log)
	}
	return nil
}

// Kill ends the daemon at once, by SIGKILL, and waits until it is gone.
func (d *Daemon) Kill() error {
	if err := d.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing the daemon: %w", err)
	}
	<-d.exited
	return nil
}

// A tail keeps the end of what is written to it.
type tail struct {
	also io.Writer
	mu   sync.Mutex
	buf  bytes.Buffer
}

const tailLength = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.also != nil {
		if n, err := t.also.Write(p); err != nil {
			return n, err
		}
	}
	if t.buf.Len() > tailLength {
		t.buf.Next(t.buf.Len() - tailLength/2)
	}
	return t.buf.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
