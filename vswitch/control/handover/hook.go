// Package handover hands what libvirt tells a hook script over to the daemon. A guest's
// start waits for the program that does it, most of whose time is its own start: so this
// package imports little, above all no net/http.
package handover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// DefaultSocket is where the daemon listens if it is told nothing else.
	DefaultSocket = "/run/tapswitch/tapswitchd.sock"
	// HookPath is where it takes hooks, by POST.
	HookPath = "/v1/hook"

	maxAnswer = 64 << 10
)

// A Hook is what libvirt tells a hook script: its arguments, and the XML on its
// standard input.
type Hook struct {
	Driver       string // "qemu" or "network"
	Object       string // name of the domain or network
	Operation    string // "prepare", "started", …
	SubOperation string
	Extra        string
	XML          []byte // at most 1 MB
}

// HookParams are the names of the parameters by which the daemon takes the arguments.
var HookParams = []string{"driver", "object", "operation", "sub_operation", "extra"}

func (h Hook) query() string {
	v := url.Values{}
	for i, text := range []string{h.Driver, h.Object, h.Operation, h.SubOperation, h.Extra} {
		v.Set(HookParams[i], text)
	}
	return v.Encode()
}

// Send hands the hook over to the daemon, within the given time. With wait it makes sure
// that the daemon has taken it, or gives an *AnswerError; without, the socket keeps it for
// a daemon that is busy. The error is an *UnreachableError if nobody answers.
func (h Hook) Send(socket string, within time.Duration, wait bool) error {
	answer, err := h.exchange(socket, within, wait)
	if err != nil {
		return Unreachable(socket, within, err)
	}
	if !wait {
		return nil
	}
	head, body, _ := bytes.Cut(answer, []byte("\r\n\r\n"))
	line, _, _ := strings.Cut(string(head), "\r\n")
	_, status, _ := strings.Cut(line, " ")
	word, _, _ := strings.Cut(status, " ")
	code, err := strconv.Atoi(word)
	switch {
	case err != nil:
		return Unreachable(socket, within, fmt.Errorf("it answers %.40q, which is no HTTP", line))
	case code >= 300:
		return ReadError(code, status, body)
	}
	return nil
}

// exchange sends the hook and, with wait, gives the whole answer. HTTP/1.0 has none in
// chunks, and ends with the connection.
func (h Hook) exchange(socket string, within time.Duration, wait bool) (answer []byte, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"}) // which never waits
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	request := fmt.Appendf(nil, "POST %s?%s HTTP/1.0\r\nHost: tapswitchd\r\nContent-Length: %d\r\n\r\n%s", HookPath, h.query(), len(h.XML), h.XML)
	sent, err := writeNow(conn, request)
	if err == nil && sent < len(request) || wait {
		if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
			return nil, err
		}
	}
	if err == nil && sent < len(request) {
		_, err = conn.Write(request[sent:])
	}
	if !wait {
		return nil, err
	}
	// An answer that comes before all is written says why the rest is not wanted.
	answer, readErr := io.ReadAll(io.LimitReader(conn, maxAnswer))
	switch {
	case len(answer) > 0:
		return answer, nil
	case err != nil:
		return nil, err
	case readErr != nil:
		return nil, readErr
	}
	return nil, io.ErrUnexpectedEOF
}

// writeNow writes what the socket has room for, however long ago the program was to be
// done: on a busy machine it may not have run since.
func writeNow(conn syscall.Conn, b []byte) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	rawErr := raw.Write(func(fd uintptr) bool {
		n, err = syscall.Write(int(fd), b)
		return true
	})
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
		err = nil
	}
	if rawErr != nil {
		err = rawErr
	}
	return max(n, 0), err
}
