package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/vswitch"
)

func TestParse(t *testing.T) {
	const text = `
uplinks = ["nic0", "to-lab"]
socket = "/run/x.sock"
metrics = "[::1]:9752"
log = "warn"
lease = "1500ms"
xdp = "always"
rxvlan_off = ["eth0"]
promote = ["fe:54:00:00:00:01"]
accept_bypass = ["br0", "virbr0"]
bulk_frame = 0
bulk_idle = "1s"
fdb_per_port = 7
`
	want := Config{
		Uplinks: []string{"nic0", "to-lab"},
		Socket:  "/run/x.sock",
		Metrics: "[::1]:9752",
		Log:     slog.LevelWarn,
		Lease:   1500 * time.Millisecond,

		XDP:          vswitch.XDPAlways,
		ShowTags:     hostbpf.Devices{Names: []string{"eth0"}},
		Promote:      []vswitch.MAC{{0xfe, 0x54, 0, 0, 0, 1}},
		AcceptBypass: []string{"br0", "virbr0"},

		BulkFrame: 0,
		BulkIdle:  time.Second, FDBPerPort: 7,
	}
	got, err := Parse("x.toml", text)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
}

func TestParseShowTags(t *testing.T) {
	for _, all := range []bool{true, false} {
		c, err := Parse("x.toml", fmt.Sprintf("rxvlan_off = %t", all))
		if err != nil || c.ShowTags.Allows("eth7") != all {
			t.Errorf("rxvlan_off = %t: got %+v, %v", all, c.ShowTags, err)
		}
	}
}

func TestParseLevels(t *testing.T) {
	for name, want := range map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	} {
		if c, err := Parse("x.toml", `log = "`+name+`"`); err != nil || c.Log != want {
			t.Errorf("log = %q gives %v, %v, want %v", name, c.Log, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown key", "log = \"info\"\n\nuplink = [\"nic0\"]", `x.toml:3: unknown key "uplink": did you mean "uplinks"?`},
		{"far from any key", "colour = 1", `x.toml:1: unknown key "colour": want one of uplinks, xdp, rxvlan_off, promote, accept_bypass, libvirt, socket, metrics, log, lease, bulk_frame, bulk_idle, fdb_per_port, strict`},
		{"unknown table", "\n[metric]\nlisten = \":1\"", `x.toml:2: unknown key "metric": did you mean "metrics"?`},
		{"dotted", "\nlog.level = \"info\"", `x.toml:2: unknown key "log.level": want one of uplinks, xdp, rxvlan_off, promote, accept_bypass, libvirt, socket, metrics, log, lease, bulk_frame, bulk_idle, fdb_per_port, strict`},
		{"nested table", "\n\n[a.b]\nc = 1", `x.toml:3: unknown key "a.b": want one of uplinks, xdp, rxvlan_off, promote, accept_bypass, libvirt, socket, metrics, log, lease, bulk_frame, bulk_idle, fdb_per_port, strict`},
		{"table for a string", "[log]\nlevel = 1", `x.toml:1: reading log: want one of debug, info, warn, error in quotes, have a table`},
		{"two faults", "log = 1\nlees = 2", "x.toml:1: reading log: want one of debug, info, warn, error in quotes, have the number 1\n" +
			`x.toml:2: unknown key "lees": did you mean "lease"?`},
		{"XDP misspelt", `xdp = "alway"`, `x.toml:1: reading xdp: unknown value "alway": did you mean "always"?`},
		{"XDP a truth", `xdp = true`, `x.toml:1: reading xdp: want one of auto, always, never in quotes, have true`},
		{"syntax", "log = \"info\"\nlease =", "x.toml:2: unexpected EOF; expected value"},
		{"twice", "log = \"info\"\nlog = \"info\"", `x.toml:2: Key 'log' has already been defined.`},

		{"uplinks a string", `uplinks = "nic0"`, `x.toml:1: reading uplinks: want a list of device names, like ["nic0"], have a string`},
		{"uplinks numbers", `uplinks = [7]`, `x.toml:1: reading uplinks: want a list of device names, like ["nic0"], have the number 7 in it`},
		{"uplink name too long", `uplinks = ["abcdefghijklmnop"]`, `x.toml:1: reading uplinks: "abcdefghijklmnop" can't be a device's name: it has 1 to 15 bytes, none of them a space, slash or colon`},
		{"uplink name empty", `uplinks = [""]`, `x.toml:1: reading uplinks: "" can't be a device's name: it has 1 to 15 bytes, none of them a space, slash or colon`},
		{"bypass true", `accept_bypass = true`, `x.toml:1: reading accept_bypass: want a list of device names, like ["br0"], have true`},
		{"bypass of all", `accept_bypass = ["a/b"]`, `x.toml:1: reading accept_bypass: "a/b" can't be a device's name: it has 1 to 15 bytes, none of them a space, slash or colon`},
		{"libvirt false", `libvirt = false`, `x.toml:1: reading libvirt: want a socket's path, a URI like "qemu:///system", or "off", have false`},
		{"libvirt far away", `libvirt = "qemu+ssh://far/system"`, `x.toml:1: reading libvirt: reading "qemu+ssh://far/system": the daemon must be this host's, reached by its socket, like "qemu:///system"`},
		{"socket relative", `socket = "x.sock"`, `x.toml:1: reading socket: want a path from the root on, like "/run/tapswitch/tapswitchd.sock", have "x.sock"`},
		{"socket a bool", `socket = true`, `x.toml:1: reading socket: want a path from the root on, like "/run/tapswitch/tapswitchd.sock", have true`},
		{"metrics a port", `metrics = 9752`, `x.toml:1: reading metrics: want an address to listen on, like "127.0.0.1:9752", or "" for none, have the number 9752`},
		{"metrics without port", `metrics = "127.0.0.1"`, `x.toml:1: reading metrics: want an address to listen on, like "127.0.0.1:9752", or "" for none, have "127.0.0.1"`},
		{"metrics port too high", `metrics = ":70000"`, `x.toml:1: reading metrics: want an address to listen on, like "127.0.0.1:9752", or "" for none, have ":70000": the port is a number from 1 to 65535`},
		{"level unknown", `log = "warning"`, `x.toml:1: reading log: unknown value "warning": did you mean "warn"?`},
		{"level misspelt", `log = "inof"`, `x.toml:1: reading log: unknown value "inof": did you mean "info"?`},
		{"lease a number", `lease = 2`, `x.toml:1: reading lease: want a duration with its unit in quotes, like "2s", have the number 2`},
		{"lease without unit", `lease = "2"`, `x.toml:1: reading lease: want a duration with its unit in quotes, like "2s", have "2"`},
		{"lease too short", `lease = "499ms"`, `x.toml:1: reading lease: want 500ms to 1m0s, have 499ms`},
		{"rxvlan_off a name", `rxvlan_off = "eth0"`, `x.toml:1: reading rxvlan_off: want a list of device names, like ["eth0"], or true for all, have a string`},
		{"promote a name", `promote = ["vnet0"]`, `x.toml:1: reading promote: want a list of taps' MAC addresses, like ["fe:54:00:12:34:56"], have "vnet0" in it`},
		{"promote a string", `promote = "fe:54:00:00:00:01"`, `x.toml:1: reading promote: want a list of taps' MAC addresses, like ["fe:54:00:12:34:56"], have a string`},
		{"bulk frame too short", `bulk_frame = 66`, `x.toml:1: reading bulk_frame: want a number of bytes from 128 to 9000, or 0 for never, have the number 66`},
		{"bulk frame a string", `bulk_frame = "1k"`, `x.toml:1: reading bulk_frame: want a number of bytes from 128 to 9000, or 0 for never, have a string`},
		{"bulk idle too short", `bulk_idle = "1ms"`, `x.toml:1: reading bulk_idle: want 50ms to 1m0s, have 1ms`},
		{"no addresses", `fdb_per_port = 0`, `x.toml:1: reading fdb_per_port: want a number of addresses from 1 to 40960, have the number 0`},
		{"all addresses", `fdb_per_port = "all"`, `x.toml:1: reading fdb_per_port: want a number of addresses from 1 to 40960, have a string`},
		{"strict a string", `strict = "true"`, `x.toml:1: reading strict: want true or false without quotes, have a string`},
		{"lease too long", `lease = "61s"`, `x.toml:1: reading lease: want 500ms to 1m0s, have 1m1s`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("x.toml", tt.text)
			if err == nil {
				t.Fatalf("gives %+v, want an error", c)
			}
			if err.Error() != tt.want {
				t.Errorf("error is\n%s\nwant\n%s", err, tt.want)
			}
			if !reflect.DeepEqual(c, Config{}) {
				t.Errorf("an error came with the configuration %+v", c)
			}
		})
	}
}

func TestParseBounds(t *testing.T) {
	for text, want := range map[string]time.Duration{"500ms": MinLease, "1m": MaxLease} {
		if c, err := Parse("x.toml", `lease = "`+text+`"`); err != nil || c.Lease != want {
			t.Errorf("lease %s gives %v, %v", text, c.Lease, err)
		}
	}
}

// The reference file stands as it is in /etc, so it must change nothing; and
// with all its keys made active it must say the same, or it documents a lie.
func TestReference(t *testing.T) {
	active := regexp.MustCompile(`(?m)^#(\w+ = )`).ReplaceAllString(Reference, "$1")
	for name, text := range map[string]string{"as shipped": Reference, "active": active} {
		c, err := Parse("tapswitch.toml", text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(c.Uplinks) == 0 {
			c.Uplinks = nil
		}
		if len(c.Promote) == 0 {
			c.Promote = nil
		}
		if len(c.AcceptBypass) == 0 {
			c.AcceptBypass = nil
		}
		if d := cmp.Diff(Default(), c); d != "" {
			t.Errorf("%s: differs from the defaults (-want +got):\n%s", name, d)
		}
	}
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^#(\w+) = `).FindAllStringSubmatch(Reference, -1) {
		documented = append(documented, m[1])
	}
	if d := cmp.Diff(keys, documented); d != "" {
		t.Errorf("documented keys (-want +got):\n%s", d)
	}
	if n := reflect.TypeFor[Config]().NumField(); n != len(keys) {
		t.Errorf("the configuration has %d fields but %d keys", n, len(keys))
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tapswitch.toml")

	if c, err := load("", path); err != nil || !reflect.DeepEqual(c, Default()) {
		t.Errorf("no file at the default path: %+v, %v, want the defaults", c, err)
	}
	if _, err := load(path, ""); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("no file at a path that was given: error %v, want not-exist with the path", err)
	}
	if err := os.WriteFile(path, []byte(`lease = "9s"`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][2]string{{"", path}, {path, "/nonexistent"}} {
		if c, err := load(args[0], args[1]); err != nil || c.Lease != 9*time.Second {
			t.Errorf("load(%q, %q) = %+v, %v, want a lease of 9 s", args[0], args[1], c, err)
		}
	}
	if _, err := load("", dir); err == nil {
		t.Error("a directory at the default path is no error")
	}
}
