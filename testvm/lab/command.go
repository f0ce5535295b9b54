package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
)

// Cmd is an exec.Cmd that starts inside a node. Set it up through the embedded
// exec.Cmd, and start it by the methods of Cmd.
type Cmd struct {
	*exec.Cmd
	node *Node
}

// Command prepares a program to run inside the node, as exec.CommandContext
// does. It is killed when ctx ends, when the node is closed, and when the
// program that made the lab dies.
//
// /proc/sys/net and /proc/net are the node's inside the program; /sys/class/net
// is not.
func (n *Node) Command(ctx context.Context, name string, args ...string) *Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	// The signal comes when the thread that forked ends, not the process. That is
	// the node's own thread, which lives exactly as long as the node.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &Cmd{Cmd: cmd, node: n}
}

// Start starts the program inside its node and doesn't wait for it. Wait must
// be called for it, also after the node was closed.
func (c *Cmd) Start() error { return c.node.Start(c.Cmd) }

// Start starts a program that Command did not prepare inside the node. It dies with
// the node if its SysProcAttr has a Pdeathsig.
func (n *Node) Start(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	select {
	case n.tasks <- func() { started <- cmd.Start() }:
	case <-n.closed:
		return fmt.Errorf("starting %s in %s: the node is closed", cmd.Path, n.name)
	}
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s in %s: %w", cmd.Path, n.name, err)
	}
	return nil
}

// Run starts the program inside its node and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the program and gives what it wrote to its standard output. The
// error holds what it wrote to standard error, if nothing else takes that.
func (c *Cmd) Output() ([]byte, error) {
	var stdout, stderr bytes.Buffer
	c.Stdout = &stdout
	if c.Stderr == nil {
		c.Stderr = &stderr
	}
	err := c.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && stderr.Len() > 0 {
		err = fmt.Errorf("running %s in %s: %w: %s", c.Path, c.node.name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), err
}

// CombinedOutput runs the program and gives all that it wrote.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}
