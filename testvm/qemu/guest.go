package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/qemu/guest"
)

// A Guest is a machine that runs. Its methods may be called from several
// goroutines at once.
type Guest struct {
	// Release is the kernel's, as uname tells it.
	Release string

	ctx     context.Context // its end ends the guest
	cancel  context.CancelCauseFunc
	port    *os.File
	conn    *guest.Conn
	console *console
	ready   chan struct{}
	exited  chan struct{}
	err     error // why the guest ended, once exited is closed; nil if it was told to

	mu      sync.Mutex
	last    uint32
	calls   map[uint32]*call
	stopped bool // it was told to power off
}

// A call is a command that runs in the guest.
type call struct {
	stdout, stderr io.Writer
	err            error // of writing to them
	exited         chan status
}

func (c *call) write(w io.Writer, p []byte) {
	if c.err == nil {
		_, c.err = w.Write(p)
	}
}

// Start boots a machine and waits until it takes commands. It is ended when ctx
// ends, when its time is over, and when this process dies. The error has the end of
// its console if the guest does not come up.
func (m Machine) Start(ctx context.Context) (*Guest, error) {
	m.setDefaults()
	qemu, err := findQEMU()
	if err != nil {
		return nil, err
	}
	k, err := m.Cache.Fetch(ctx, m.Kernel)
	if err != nil {
		return nil, err
	}
	root, err := m.rootFS(ctx, k)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	g := &Guest{
		Release: k.Release,
		console: &console{also: m.Console},
		ready:   make(chan struct{}),
		exited:  make(chan struct{}),
		calls:   make(map[uint32]*call),
	}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	if err := g.start(m, qemu, k.Image(), root); err != nil {
		g.cancel(nil)
		return nil, fmt.Errorf("starting QEMU: %w", err)
	}
	select {
	case <-g.ready:
		return g, nil
	case <-g.exited:
		return nil, fmt.Errorf("booting Linux %s: %w", g.Release, g.err)
	}
}

// start starts QEMU and what looks after it.
func (g *Guest) start(m Machine, qemu, image string, root *os.File) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs := os.NewFile(uintptr(pair[1]), "guest's port")
	defer theirs.Close()
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return err
	}
	g.port = os.NewFile(uintptr(pair[0]), "port of the guest")
	g.conn = guest.NewConn(g.port)

	stderr := new(bytes.Buffer)
	cmd := exec.CommandContext(g.ctx, qemu, m.args(image)...)
	cmd.ExtraFiles = []*os.File{root, theirs} // initrdFD, portFD
	cmd.Stdout, cmd.Stderr = g.console, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.Spawn(cmd); err != nil {
		g.port.Close()
		return err
	}
	timer := time.AfterFunc(m.Timeout, func() {
		g.cancel(fmt.Errorf("the guest was ended after %v", m.Timeout))
	})
	go g.receive()
	go func() {
		err := cmd.Wait()
		timer.Stop()
		g.port.Close()
		g.err = g.explain(err, stderr.String())
		g.cancel(nil)
		close(g.exited)
	}()
	return nil
}

// explain says why QEMU has ended, which gave err.
func (g *Guest) explain(err error, stderr string) error {
	g.mu.Lock()
	stopped := g.stopped
	g.mu.Unlock()
	switch cause := context.Cause(g.ctx); {
	case cause != nil:
		err = cause
	case err != nil:
		return fmt.Errorf("%s: %w: %s", program, err, stderr)
	case stopped:
		return nil
	default:
		err = errors.New("the guest stopped by itself")
	}
	return fmt.Errorf("%w; its console's end:%s", err, g.console)
}

// receive hands what the guest sends to whom it concerns.
func (g *Guest) receive() {
	for {
		f, err := g.conn.Receive()
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
			return // QEMU ends
		}
		if err != nil {
			g.cancel(fmt.Errorf("hearing the guest: %w", err))
			return
		}
		if f.Kind == guest.Hello {
			close(g.ready)
			continue
		}
		g.mu.Lock()
		c := g.calls[f.Call]
		g.mu.Unlock()
		if c == nil {
			continue // it was given up
		}
		switch f.Kind {
		case guest.Stdout:
			c.write(c.stdout, f.Payload)
		case guest.Stderr:
			c.write(c.stderr, f.Payload)
		case guest.Exit:
			var s status
			if err := json.Unmarshal(f.Payload, &s); err != nil {
				s.Err = err.Error()
			}
			if c.err != nil {
				s.Err = fmt.Sprintf("handing on what it wrote: %v", c.err)
			}
			c.exited <- s
		}
	}
}
