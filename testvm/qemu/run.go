package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tapswitch/tapswitch/testvm/qemu/guest"
)

// A Command is a program with its arguments, to run in a guest.
type Command struct {
	// Args are the program's path in the guest, or its name in the guest's PATH, and
	// its arguments.
	Args []string
	// Env is added to the machine's.
	Env []string
	// Dir is the working directory; the root if empty.
	Dir string
	// Stdout and Stderr receive what the program writes, as it comes; nobody if nil.
	Stdout, Stderr io.Writer
}

// An ExitError says that a command ran and did not end well.
type ExitError struct {
	Name   string
	Code   int    // as a shell tells it: 128 and the signal's number if one killed it
	Signal string // what killed it, or empty
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s ended in the guest: %s", e.Name, cmp.Or(e.Signal, fmt.Sprintf("exit status %d", e.Code)))
}

// Run runs one command in a fresh guest and stops it. The error is an *ExitError
// if the command ran and failed.
func Run(ctx context.Context, m Machine, c Command) error {
	g, err := m.Start(ctx)
	if err != nil {
		return err
	}
	if err := g.Run(ctx, c); err != nil {
		// A guest that hangs shows in the command's error.
		if exit := (*ExitError)(nil); !errors.As(err, &exit) {
			g.Kill()
			return err
		}
		return errors.Join(err, g.Stop())
	}
	return g.Stop()
}

// bound is how long a guest may take for what takes milliseconds: it and the
// machine may be busy.
const bound = 30 * time.Second

// Run runs a command and waits for its end. It is killed when ctx ends. The error
// is an *ExitError if the command ran and failed, and has the end of the guest's
// console if the guest ended meanwhile.
func (g *Guest) Run(ctx context.Context, c Command) error {
	if len(c.Args) == 0 {
		return errors.New("running a command: none is given")
	}
	id, exited := g.newCall(c)
	defer g.dropCall(id)
	if err := g.conn.SendJSON(guest.Run, id, guest.Command{Args: c.Args, Env: c.Env, Dir: c.Dir}); err != nil {
		return fmt.Errorf("running %s: %w", c.Args[0], g.ended(err))
	}
	select {
	case s := <-exited:
		return s.err(c.Args[0])
	case <-g.exited:
		return fmt.Errorf("running %s: %w", c.Args[0], g.ended(nil))
	case <-ctx.Done():
	}
	if err := g.conn.Send(guest.Frame{Kind: guest.Kill, Call: id}); err != nil {
		return fmt.Errorf("running %s: %w", c.Args[0], g.ended(err))
	}
	select {
	case <-exited:
	case <-g.exited:
		return fmt.Errorf("running %s: %w", c.Args[0], g.ended(nil))
	case <-time.After(bound):
		g.cancel(errors.New("the guest did not kill a command"))
		return fmt.Errorf("running %s: %w", c.Args[0], g.ended(nil))
	}
	return fmt.Errorf("running %s: %w", c.Args[0], ctx.Err())
}

func (g *Guest) newCall(c Command) (uint32, <-chan status) {
	discard := func(w io.Writer) io.Writer {
		if w == nil {
			return io.Discard
		}
		return w
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	exited := make(chan status, 1)
	g.calls[g.last] = &call{stdout: discard(c.Stdout), stderr: discard(c.Stderr), exited: exited}
	return g.last, exited
}

func (g *Guest) dropCall(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, id)
}

// A status is how a command ended, as the guest tells it.
type status guest.Status

func (s status) err(name string) error {
	switch {
	case s.Err != "":
		return fmt.Errorf("running %s in the guest: %s", name, s.Err)
	case s.Code != 0:
		return &ExitError{name, s.Code, s.Signal}
	}
	return nil
}

// ended waits for the guest's end and says why it came. Err is what showed it.
func (g *Guest) ended(err error) error {
	select {
	case <-g.exited:
	case <-time.After(bound):
		return err
	}
	if g.err != nil {
		return g.err
	}
	return errors.Join(errors.New("the guest was stopped"), err)
}

// Stop switches the guest off and waits for its end. The error has the end of its
// console if that was not as it should be.
func (g *Guest) Stop() error {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	// A guest that has ended can't hear it, and gives its error below.
	_ = g.conn.Send(guest.Frame{Kind: guest.PowerOff})
	timer := time.AfterFunc(bound, func() { g.cancel(errors.New("the guest did not switch itself off")) })
	defer timer.Stop()
	<-g.exited
	return g.err
}

// Kill ends the guest at once, as if its plug were pulled, and waits for its end.
func (g *Guest) Kill() {
	g.cancel(errors.New("the guest was killed"))
	<-g.exited
}

// Exited is closed when the guest has ended.
func (g *Guest) Exited() <-chan struct{} { return g.exited }
