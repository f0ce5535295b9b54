package hookcall

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/vswitch/control"
	"github.com/tapswitch/tapswitch/vswitch/control/controltest"
)

const hookDomain = "<domain type='kvm' id='1'><name>web</name></domain>\n"

// A call is a hook with what it has said.
type call struct {
	Hook
	stderr bytes.Buffer
	logged []string
}

// newCall makes a hook with a configuration, for the daemon that stands for src, or for
// none.
func newCall(t *testing.T, configuration string, src control.Switch) *call {
	t.Helper()
	dir := t.TempDir()
	c := &call{Hook: Hook{
		Stdin: strings.NewReader(hookDomain), After: time.After,
		Socket: filepath.Join(dir, "t.sock"), Config: filepath.Join(dir, "tapswitch.toml"),
	}}
	c.Stderr = &c.stderr
	c.Log = func(s string) { c.logged = append(c.logged, s) }
	if err := os.WriteFile(c.Config, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	if src == nil {
		return c
	}
	l, err := control.Listen(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- control.Serve(ctx, l, control.NewServer(src, nil)) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestHookHandsOver(t *testing.T) {
	src := &controltest.Source{Hooks: make(chan control.Hook, 1)}
	c := newCall(t, "strict = true\nlease = '3s'\n", src)
	for _, tt := range []struct {
		input string
		want  control.Hook
	}{
		{hookDomain, control.Hook{Driver: "qemu", Object: "web", Operation: "start", SubOperation: "begin", Extra: "-"}},
		{hookDomain, control.Hook{Driver: "qemu", Object: "--help", Operation: "stopped", SubOperation: "end", Extra: "-"}},
		{"<hookData><network><name>n</name></network></hookData>", control.Hook{Driver: "network", Object: "n", Operation: "port-created", SubOperation: "begin", Extra: "-"}},
	} {
		// Only with strict it waits for the answer.
		c.Stdin = strings.NewReader(tt.input)
		if err := c.Run(tt.want.Driver, []string{tt.want.Object, tt.want.Operation, tt.want.SubOperation, tt.want.Extra}); err != nil || c.stderr.Len() > 0 {
			t.Errorf("error %v, stderr %q, want no word", err, &c.stderr)
		}
		tt.want.XML = []byte(tt.input)
		if d := gocmp.Diff(tt.want, <-src.Hooks); d != "" {
			t.Errorf("hook (-want +got):\n%s", d)
		}
	}
}

// A guest starts, whatever is wrong.
func TestHookNeverFails(t *testing.T) {
	const gone = "tapswitchd is not running (no socket at SOCKET): systemctl start tapswitchd"
	for _, tt := range []struct {
		name, configuration string
		daemon              control.Switch
		input               io.Reader
		args                string
		refused             bool
		said                []string
	}{
		{name: "no daemon", said: []string{"hook qemu prepare of web: " + gone}},
		{name: "no daemon, strict", configuration: "strict = true", refused: true, said: []string{"hook qemu prepare of web: " + gone}},
		{name: "no daemon, strict, a guest that has stopped", configuration: "strict = true", args: "web stopped end -", said: []string{"hook qemu stopped of web: " + gone}},
		{name: "the daemon fails, strict", configuration: "strict = true", refused: true, daemon: &controltest.Source{Err: errors.New("no room")}, said: []string{"hook qemu prepare of web: no room"}},
		{name: "the daemon can't read it, strict", configuration: "strict = true", daemon: &controltest.Source{Err: control.BadRequest(errors.New("no name"))}, said: []string{"hook qemu prepare of web: no name"}},
		{name: "malformed", configuration: "strict = true", input: strings.NewReader("<domain><name>web"), said: []string{"hook qemu prepare of web: reading the XML on standard input: XML syntax error on line 1: unexpected EOF"}},
		{name: "wrongly nested", input: strings.NewReader("<domain><a></domain></a>"), said: []string{"hook qemu prepare of web: reading the XML on standard input: XML syntax error on line 1: element <a> closed by </domain>"}},
		{name: "nothing", input: strings.NewReader(""), said: []string{"hook qemu prepare of web: reading the XML on standard input: EOF"}},
		{name: "another element", input: strings.NewReader("<network/>"), said: []string{"hook qemu prepare of web: reading the XML on standard input: want one element <domain>, have <network>"}},
		{name: "two elements", input: strings.NewReader("<domain/><domain/>"), said: []string{"hook qemu prepare of web: reading the XML on standard input: want one element <domain>, have <domain>"}},
		{name: "too long", input: io.MultiReader(strings.NewReader(hookDomain), strings.NewReader(strings.Repeat(" ", maxXML))), said: []string{"hook qemu prepare of web: reading the XML on standard input: has more than 1048576 bytes"}},
		{name: "no end", configuration: "strict = true", input: neverEnding(t), said: []string{"hook qemu prepare of web: the XML on standard input has not ended for 2s"}},
		{name: "configuration", configuration: "strict = 7\n", said: []string{`hook qemu prepare of web: reading CONFIG: toml: line 1 (last key "strict"): incompatible types: TOML value has type int64; destination has type boolean; the hook goes on as if it had no configuration`, "hook qemu prepare of web: " + gone}},
		{name: "a name with control characters", args: "a\x1bb\vc prepare", said: []string{"hook qemu prepare of a\ufffdb\ufffdc: " + gone}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCall(t, tt.configuration, tt.daemon)
			c.After = func(time.Duration) <-chan time.Time {
				if tt.name != "no end" {
					return nil
				}
				now := make(chan time.Time)
				close(now)
				return now
			}
			if tt.input != nil {
				c.Stdin = tt.input
			}
			err := c.Run("qemu", strings.Split(cmp.Or(tt.args, "web prepare begin -"), " "))
			if (err != nil) != tt.refused {
				t.Errorf("error %v, want one: %v", err, tt.refused)
			}
			for i, s := range c.logged {
				c.logged[i] = strings.NewReplacer(c.Socket, "SOCKET", c.Config, "CONFIG").Replace(s)
			}
			if d := gocmp.Diff(tt.said, c.logged); d != "" {
				t.Errorf("logged (-want +got):\n%s", d)
			}
		})
	}
	for _, args := range [][]string{{}, {"web"}, {"web", "start", "begin", "-", "more"}} {
		if err := newCall(t, "", nil).Run("qemu", args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
	if err := newCall(t, "", nil).Run("lxc", []string{"web", "start"}); err == nil {
		t.Error("a hook of lxc's is taken")
	}
}

func neverEnding(t *testing.T) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return r
}

// A daemon that does not answer is not waited for, and has the hook when it wakes.
func TestHookDoesNotWait(t *testing.T) {
	c := newCall(t, "", nil)
	l, err := net.Listen("unix", c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := c.Run("qemu", []string{"web", "prepare", "begin", "-"}); err != nil || c.stderr.Len() > 0 {
		t.Errorf("error %v, stderr %q", err, &c.stderr)
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

func TestVetoes(t *testing.T) {
	for driver := range roots {
		for _, operation := range []string{"prepare", "start", "started", "stopped", "release", "reconnect", "migrate", "port-created"} {
			want := driver == "qemu" && (operation == "prepare" || operation == "start")
			if got := vetoes(control.Hook{Driver: driver, Operation: operation}); got != want {
				t.Errorf("%s %s vetoes: %v", driver, operation, got)
			}
		}
	}
}

// What the hook's program imports it initialises at each guest's start.
func TestHookImportsLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/tapswitch/tapswitch/cmd/tapswitch-hook").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range strings.Fields(string(out)) {
		if slices.Contains([]string{"net/http", "crypto/tls", "regexp"}, p) ||
			strings.Contains(p, ".") && !strings.HasPrefix(p, "vendor/") && !strings.HasPrefix(p, "crypto/") &&
				!strings.HasPrefix(p, "github.com/tapswitch/tapswitch/") && !strings.HasPrefix(p, "github.com/BurntSushi/toml") {
			t.Errorf("tapswitch-hook imports %s", p)
		}
	}
}
