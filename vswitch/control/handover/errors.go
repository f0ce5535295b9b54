package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// An AnswerError is the daemon's word that it could not do what it was asked.
type AnswerError struct {
	StatusCode int // of HTTP
	Message    string
}

func (e *AnswerError) Error() string { return e.Message }

// Is makes an answer about something absent an os.ErrNotExist.
func (e *AnswerError) Is(target error) bool {
	return target == os.ErrNotExist && e.StatusCode == 404
}

// An ErrorBody is the answer to a request that failed.
type ErrorBody struct {
	Error string `json:"error"`
}

// ReadError makes an error of an answer's status, as code and as text, and its body.
func ReadError(code int, status string, text []byte) *AnswerError {
	var body ErrorBody
	if json.Unmarshal(text, &body) != nil || body.Error == "" {
		body.Error = "tapswitchd answered: " + status
	}
	return &AnswerError{StatusCode: code, Message: body.Error}
}

// An UnreachableError says that no daemon answers on the socket, why, and what
// to do.
type UnreachableError struct {
	Socket string
	Advice string
	Err    error
}

func (e *UnreachableError) Error() string { return e.Advice }
func (e *UnreachableError) Unwrap() error { return e.Err }

// Unreachable makes an error of why asking the daemon has failed, within the time that
// it had.
func Unreachable(socket string, had time.Duration, err error) *UnreachableError {
	u := &UnreachableError{Socket: socket, Err: err}
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		u.Advice = fmt.Sprintf("tapswitchd is not running (no socket at %s): systemctl start tapswitchd", socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		u.Advice = fmt.Sprintf("tapswitchd is not running (nobody answers at %s): systemctl start tapswitchd", socket)
	case errors.Is(err, os.ErrPermission):
		u.Advice = fmt.Sprintf("no permission to open %s: run as root", socket)
	case errors.As(err, &timeout) && timeout.Timeout():
		u.Advice = fmt.Sprintf("tapswitchd has not answered on %s for %s: journalctl -u tapswitchd may say why", socket, had)
	default:
		u.Advice = fmt.Sprintf("asking tapswitchd at %s: %v", socket, err)
	}
	return u
}
