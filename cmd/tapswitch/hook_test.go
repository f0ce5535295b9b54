package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

const hookDomain = "<domain type='kvm' id='1'><name>web</name></domain>\n"

// hook runs a hook as libvirt does, with the configuration.
func (c *console) hook(t *testing.T, configuration, input string, args ...string) int {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tapswitch.toml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	c.stdin = strings.NewReader(input)
	return c.run(t.Context(), append([]string{"hook", args[0], "--config", file, "--"}, args[1:]...)...)
}

func TestHookHandsOver(t *testing.T) {
	src := &controltest.Source{Hooks: make(chan control.Hook, 1)}
	c := newConsole(t, src)
	for _, tt := range []struct {
		input string
		want  control.Hook
	}{
		{hookDomain, control.Hook{Driver: "qemu", Object: "web", Operation: "start", SubOperation: "begin", Extra: "-"}},
		{hookDomain, control.Hook{Driver: "qemu", Object: "--help", Operation: "stopped", SubOperation: "end", Extra: "-"}},
		{"<hookData><network><name>n</name></network></hookData>", control.Hook{Driver: "network", Object: "n", Operation: "port-created", SubOperation: "begin", Extra: "-"}},
	} {
		// Only with strict it waits for the answer.
		code := c.hook(t, "strict = true", tt.input, tt.want.Driver, tt.want.Object, tt.want.Operation, tt.want.SubOperation, tt.want.Extra)
		if code != exitFine || c.stderr.Len() > 0 || c.stdout.Len() > 0 {
			t.Errorf("exit code %d, stderr %q, stdout %q, want no word", code, &c.stderr, &c.stdout)
		}
		tt.want.XML = []byte(tt.input)
		if d := cmp.Diff(tt.want, <-src.Hooks); d != "" {
			t.Errorf("hook (-want +got):\n%s", d)
		}
	}
}

// A guest starts, whatever is wrong.
func TestHookNeverFails(t *testing.T) {
	for _, tt := range []struct {
		name, configuration string
		daemon              *controltest.Source
		input               io.Reader
		args                []string
		code                int
		said                string
	}{
		{name: "no daemon", said: "hook qemu prepare of web: tapswitchd is not running (no socket at SOCKET): systemctl start tapswitchd"},
		{name: "no daemon, strict", configuration: "strict = true", code: 1, said: "hook qemu prepare of web: tapswitchd is not running (no socket at SOCKET): systemctl start tapswitchd"},
		{name: "no daemon, strict, a guest that has stopped", configuration: "strict = true", args: []string{"qemu", "web", "stopped", "end", "-"}, said: "hook qemu stopped of web: tapswitchd is not running (no socket at SOCKET): systemctl start tapswitchd"},
		{name: "the daemon fails, strict", configuration: "strict = true", code: 1, daemon: &controltest.Source{Err: errors.New("no room")}, said: "hook qemu prepare of web: no room"},
		{name: "malformed", configuration: "strict = true", input: strings.NewReader("<domain><name>web"), said: "hook qemu prepare of web: reading domain XML: XML syntax error on line 1: unexpected EOF"},
		{name: "nothing", input: strings.NewReader(""), said: "hook qemu prepare of web: reading domain XML: EOF"},
		{name: "too long", input: io.MultiReader(strings.NewReader(hookDomain), strings.NewReader(strings.Repeat(" ", libvirt.MaxXML))), said: "hook qemu prepare of web: reading domain XML: has 1048577 bytes, want at most 1048576"},
		{name: "no end", configuration: "strict = true", input: neverEnding(t), said: "hook qemu prepare of web: the XML on standard input has not ended for 2s"},
		{name: "configuration", configuration: "strict = 7\n", said: "hook qemu prepare of web: CONFIG:1: reading strict: want true or false without quotes, have the number 7; the hook goes on as if it had no configuration\nhook qemu prepare of web: tapswitchd is not running (no socket at SOCKET): systemctl start tapswitchd"},
		{name: "a name with control characters", args: []string{"qemu", "a\x1bb\nc", "prepare"}, said: "hook qemu prepare of a�b; c: tapswitchd is not running (no socket at SOCKET): systemctl start tapswitchd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var src control.Switch
			if tt.daemon != nil {
				src = tt.daemon
			}
			c := newConsole(t, src)
			if tt.daemon == nil {
				c.vars["TAPSWITCH_SOCKET"] = "/nonexistent/t.sock"
			}
			var logged []string
			c.logHook = func(s string) { logged = append(logged, s) }
			c.after = func(time.Duration) <-chan time.Time {
				if tt.name != "no end" {
					return nil
				}
				now := make(chan time.Time)
				close(now)
				return now
			}
			c.stdin = strings.NewReader(hookDomain)
			if tt.input != nil {
				c.stdin = tt.input
			}
			file := filepath.Join(t.TempDir(), "tapswitch.toml")
			if err := os.WriteFile(file, []byte(tt.configuration), 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.args == nil {
				tt.args = []string{"qemu", "web", "prepare", "begin", "-"}
			}
			code := c.run(t.Context(), append([]string{"hook", tt.args[0], "--config", file, "--"}, tt.args[1:]...)...)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			said := strings.NewReplacer("SOCKET", "/nonexistent/t.sock", "CONFIG", file).Replace(tt.said)
			if d := cmp.Diff(strings.Split(said, "\n"), logged); d != "" {
				t.Errorf("logged (-want +got):\n%s", d)
			}
			if c.stdout.Len() > 0 {
				t.Errorf("stdout is %q, which libvirt may take for XML", &c.stdout)
			}
		})
	}
}

func neverEnding(t *testing.T) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return r
}

// A daemon that does not answer is not waited for, and has the hook when it wakes.
func TestHookDoesNotWait(t *testing.T) {
	defer func(d time.Duration) { hookHandTime = d }(hookHandTime)
	hookHandTime = time.Minute
	c := newConsole(t, nil)
	l, err := net.Listen("unix", c.vars["TAPSWITCH_SOCKET"])
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if code := c.hook(t, "", hookDomain, "qemu", "web", "prepare", "begin", "-"); code != exitFine || c.stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %q", code, &c.stderr)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || !bytes.Equal(body, []byte(hookDomain)) {
		t.Errorf("the socket has kept %q, %v", body, err)
	}
}
