package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/syslog"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/cmd/tapswitchd/config"
	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

func init() { commands = append(commands, newHook) }

// How long a guest's start may wait for a hook: for the XML, which libvirt writes at
// once; for the daemon's answer with strict; and for the log.
const (
	hookInputTime  = 2 * time.Second
	hookStrictTime = 2 * time.Second
	hookLogTime    = 5 * time.Millisecond
)

// hookHandTime is how long a hook may take to reach the daemon's socket. It is a
// variable for tests on busy machines.
var hookHandTime = 5 * time.Millisecond

func newHook(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Let libvirt tell the daemon of guests as they start",
		Long: `Let libvirt tell the daemon of guests as they start, by hook scripts of libvirt's.

With the scripts the daemon knows a guest's XML before the guest's first frame.
Without them it hears of guests by libvirt's events, some 600 ms later; until then
an interface with a <filterref> is held by the filter's own rules alone.

The scripts stand beside others in libvirt's qemu.d and network.d, hand over what
libvirt says, and never ask libvirt anything. A guest starts whether the daemon
runs or not, unless the configuration has 'strict = true'.

` + exitCodes,
	}
	cmd.AddCommand(newHookInstall(e), newHookUninstall(e), newHookStatus(e), newHookCall(e, libvirt.HookQEMU), newHookCall(e, libvirt.HookNetwork))
	return cmd
}

// newHookCall makes the command that the scripts call.
func newHookCall(e *env, driver string) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   driver + " NAME OPERATION [SUB-OPERATION [EXTRA]]",
		Short: "Hand what libvirt's " + driver + " hook says over to the daemon",
		Long: `Hand over to the daemon what libvirt's ` + driver + ` hook says by its arguments, and by
the XML on standard input, of at most 1 MB. The script that 'tapswitch hook install'
makes calls it.

It ends well whatever happens, so that guests start; what goes wrong is said on
standard error and to syslog. With 'strict = true' in the configuration a guest does
not start while the daemon does not answer.`,
		Args: cobra.RangeArgs(2, 4),
		RunE: func(cmd *cobra.Command, args []string) error {
			args = append(args, "", "")
			call := libvirt.HookCall{Driver: driver, Object: args[0], Operation: args[1], SubOperation: args[2], Extra: args[3]}
			c, err := config.Load(path)
			if err != nil {
				e.warnHook(call, fmt.Errorf("%w; the hook goes on as if it had no configuration", err))
			}
			text, err := e.readHook(call)
			if err != nil {
				e.warnHook(call, err)
				return nil
			}
			strict := c.Strict && call.Vetoes()
			if err := e.hand(cmd.Context(), call, text, strict); err != nil {
				e.warnHook(call, err)
				if strict {
					return errors.New("the guest does not start, because of 'strict = true' in the configuration")
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration `file` (default "+config.DefaultPath+", if it is there)")
	return cmd
}

// hand gives a hook's call to the daemon. With strict it makes sure that the daemon
// has taken it; without, the socket keeps it for a daemon that is busy.
func (e *env) hand(ctx context.Context, call libvirt.HookCall, text []byte, strict bool) error {
	limit := hookHandTime
	if strict {
		limit = hookStrictTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var written atomic.Bool
	if !strict {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(w httptrace.WroteRequestInfo) {
			if w.Err == nil {
				written.Store(true)
				cancel()
			}
		}})
	}
	client := e.dial(e.socket)
	defer client.Close()
	err := client.Hook(ctx, control.Hook{
		Driver: call.Driver, Object: call.Object, Operation: call.Operation, SubOperation: call.SubOperation, Extra: call.Extra, XML: text,
	})
	switch {
	case written.Load():
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("tapswitchd has not answered on %s for %v", e.socket, limit)
	}
	return err
}

// readHook reads what libvirt writes to a hook's standard input, and makes sure that
// it is what it should be.
func (e *env) readHook(call libvirt.HookCall) (text []byte, err error) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		text, err = io.ReadAll(io.LimitReader(e.stdin, libvirt.MaxXML+1))
	}()
	select {
	case <-read:
	case <-e.after(hookInputTime):
		return nil, fmt.Errorf("the XML on standard input has not ended for %v", hookInputTime)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the XML on standard input: %w", err)
	}
	_, err = call.ParseHook(text)
	return text, err
}

// warnHook says what went wrong where a person may find it: libvirt shows what a
// hook writes to standard error only if it fails.
func (e *env) warnHook(call libvirt.HookCall, err error) {
	text := fmt.Sprintf("hook %s %s of %s: %v", call.Driver, call.Operation, call.Object, err)
	text = printable(strings.ReplaceAll(text, "\n", "; "))
	fmt.Fprintf(e.stderr, "tapswitch: %s\n", text)
	if e.logHook == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.logHook(text)
	}()
	select {
	case <-done:
	case <-time.After(hookLogTime):
	}
}

// toSyslog logs a warning if there is a syslog.
func toSyslog(text string) {
	w, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_WARNING, "tapswitch")
	if err != nil {
		return
	}
	defer w.Close()
	_ = w.Warning(text)
}
