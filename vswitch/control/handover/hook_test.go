package handover

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAnswers sends hooks to one that answers otherwise than the daemon does, whose own
// answers package control tests.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct{ answer, want string }{
		{"HTTP/1.0 204 No Content\r\n\r\n", ""},
		{"HTTP/1.0 200 OK\r\n\r\n", ""},
		{"HTTP/1.0 500 Internal Server Error\r\nContent-Type: application/json\r\n\r\n{\"error\":\"no room\"}\n", "no room"},
		{"HTTP/1.0 500 Internal Server Error\r\n\r\nno room", "tapswitchd answered: 500 Internal Server Error"},
		{"HTTP/1.0\r\n\r\n", "asking tapswitchd at SOCKET: it answers \"HTTP/1.0\", which is no HTTP"},
		{"SSH-2.0-other\r\n", "asking tapswitchd at SOCKET: it answers \"SSH-2.0-other\", which is no HTTP"},
		{"", "asking tapswitchd at SOCKET: unexpected EOF"},
	} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		h := Hook{Driver: "qemu", Object: "web & co", Operation: "start", XML: []byte("<domain/>")}
		asked := make(chan string)
		go func() {
			defer l.Close()
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			b := make([]byte, 4096)
			var got []byte
			for !strings.HasSuffix(string(got), string(h.XML)) {
				n, err := conn.Read(b)
				if err != nil {
					break
				}
				got = append(got, b[:n]...)
			}
			_, _ = io.WriteString(conn, tt.answer)
			asked <- string(got)
		}()
		result := make(chan error)
		go func() { result <- h.Send(socket, time.Minute, true) }()
		if got := <-asked; !strings.HasPrefix(got, "POST /v1/hook?driver=qemu&extra=&object=web+%26+co&operation=start&sub_operation= HTTP/1.0\r\n") {
			t.Errorf("asked %q", got)
		}
		err = <-result
		got := ""
		if err != nil {
			got = strings.ReplaceAll(err.Error(), socket, "SOCKET")
		}
		if got != tt.want {
			t.Errorf("after %q: %q, want %q", tt.answer, got, tt.want)
		}
	}
	err := Hook{}.Send(filepath.Join(t.TempDir(), "none"), time.Minute, true)
	if !errors.As(err, new(*UnreachableError)) {
		t.Errorf("without a daemon: %v, want an UnreachableError", err)
	}
}
