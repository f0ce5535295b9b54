package main

import (
	"errors"
	"fmt"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

// The exit codes, which exitCodes documents.
const (
	exitFine        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
)

const exitCodes = `Exit codes:
  0  fine (also when ports are held back)
  1  failed
  2  wrong usage
  3  the daemon can't be reached`

// A usageError says that the command was called in a way that it can't be.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// exitCode gives the code to exit with for what a command has returned.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitFine
	case errors.As(err, new(*usageError)):
		return exitUsage
	case errors.As(err, new(*control.UnreachableError)):
		return exitUnreachable
	}
	return exitFailed
}
