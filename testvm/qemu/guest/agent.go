package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// serve runs commands for the host until it says power off, or is gone.
func serve() {
	err := func() error {
		config, err := readConfig()
		if err != nil {
			return err
		}
		port, err := openPort()
		if err != nil {
			return err
		}
		a := &agent{conn: NewConn(port), env: config.Env, running: make(map[uint32]*exec.Cmd)}
		if err := a.conn.Send(Frame{Kind: Hello}); err != nil {
			return err
		}
		return a.serve()
	}()
	if err != nil {
		fmt.Fprintf(os.Stderr, "testvm: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type agent struct {
	conn *Conn
	env  []string

	mu      sync.Mutex
	running map[uint32]*exec.Cmd
}

func (a *agent) serve() error {
	for {
		f, err := a.conn.Receive()
		if err != nil {
			return fmt.Errorf("waiting for the host's next word: %w", err)
		}
		switch f.Kind {
		case Run:
			// Started at once, so that a Kill that follows finds it.
			wait := a.start(f)
			go func() {
				if err := a.conn.SendJSON(Exit, f.Call, wait()); err != nil {
					fmt.Fprintf(os.Stderr, "testvm: %v\n", err)
				}
			}()
		case Kill:
			a.kill(f.Call)
		case PowerOff:
			return nil
		default:
			return fmt.Errorf("the host sent a frame of unknown kind %d", f.Kind)
		}
	}
}

// start starts a command and gives what waits for its end.
func (a *agent) start(f Frame) (wait func() Status) {
	failed := func(err error) func() Status { return func() Status { return Status{Err: err.Error()} } }
	var c Command
	if err := json.Unmarshal(f.Payload, &c); err != nil {
		return failed(err)
	}
	if len(c.Args) == 0 {
		return failed(errors.New("no command"))
	}
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Env = append(append(os.Environ(), a.env...), c.Env...)
	cmd.Dir = c.Dir
	cmd.Stdout = output{a.conn, Stdout, f.Call}
	cmd.Stderr = output{a.conn, Stderr, f.Call}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A command that leaves others behind, which hold its output, has ended all the same.
	cmd.WaitDelay = 5 * time.Second
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return failed(err)
	}
	a.running[f.Call] = cmd
	return func() Status {
		err := cmd.Wait()
		a.mu.Lock()
		delete(a.running, f.Call)
		a.mu.Unlock()
		return status(cmd, err)
	}
}

func (a *agent) kill(call uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cmd, ok := a.running[call]; ok {
		// The session's first process leads a group of the same number.
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
			fmt.Fprintf(os.Stderr, "testvm: killing %s: %v\n", cmd.Path, err)
		}
	}
}

func status(cmd *exec.Cmd, err error) Status {
	if cmd.ProcessState == nil {
		return Status{Err: err.Error()}
	}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal().String()}
	}
	return Status{Code: cmd.ProcessState.ExitCode()}
}

// An output sends what a command writes.
type output struct {
	conn *Conn
	kind Kind
	call uint32
}

func (o output) Write(p []byte) (int, error) {
	if err := o.conn.Send(Frame{o.kind, o.call, p}); err != nil {
		return 0, err
	}
	return len(p), nil
}
