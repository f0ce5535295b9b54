package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/cmd/suggest"
	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch"
)

// A setting decodes the value of one key into the configuration.
type setting struct {
	key    toml.Key
	config *Config
}

var _ toml.Unmarshaler = (*setting)(nil)

// keys are all that a configuration may hold, in the reference file's order.
var keys = []string{"uplinks", "xdp", "rxvlan_off", "promote", "accept_bypass", "libvirt", "socket", "metrics", "log", "lease", "bulk_frame", "bulk_idle", "fdb_per_port", "strict"}

// UnmarshalTOML takes the key's value as the parser has read it.
func (s *setting) UnmarshalTOML(value any) (err error) {
	c := s.config
	switch key := s.key.String(); key {
	case "uplinks":
		c.Uplinks, err = devices(value, "nic0")
	case "xdp":
		var mode int
		mode, err = oneOf(value, vswitch.XDPModes)
		c.XDP = vswitch.XDPMode(mode)
	case "rxvlan_off":
		c.ShowTags, err = showTags(value)
	case "promote":
		c.Promote, err = promote(value)
	case "accept_bypass":
		c.AcceptBypass, err = devices(value, "br0")
	case "libvirt":
		c.Libvirt, err = target(value)
	case "socket":
		c.Socket, err = socket(value)
	case "metrics":
		c.Metrics, err = metrics(value)
	case "log":
		c.Log, err = level(value)
	case "lease":
		c.Lease, err = duration(value, MinLease, MaxLease)
	case "bulk_frame":
		c.BulkFrame, err = bulkFrame(value)
	case "bulk_idle":
		c.BulkIdle, err = duration(value, MinBulkIdle, MaxBulkIdle)
	case "fdb_per_port":
		c.FDBPerPort, err = fdbPerPort(value)
	case "strict":
		c.Strict, err = boolean(value)
	default:
		return fmt.Errorf("unknown key %q: %s", key, suggest.Hint(key, keys))
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", s.key, err)
	}
	return nil
}

// devices reads a list of device names, of which like is one.
func devices(value any, like string) ([]string, error) {
	want := fmt.Sprintf("want a list of device names, like [%q]", like)
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%s, have %s", want, kind(value))
	}
	var names []string
	for _, v := range list {
		name, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("%s, have %s in it", want, kind(v))
		}
		if name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "/ \t\n:") {
			return nil, fmt.Errorf("%q can't be a device's name: it has 1 to %d bytes, none of them a space, slash or colon", name, unix.IFNAMSIZ-1)
		}
		names = append(names, name)
	}
	return names, nil
}

func showTags(value any) (of hostbpf.Devices, err error) {
	switch v := value.(type) {
	case bool:
		of.All = v
	case []any:
		of.Names, err = devices(v, "eth0")
	default:
		err = fmt.Errorf("want a list of device names, like [\"eth0\"], or true for all, have %s", kind(value))
	}
	return of, err
}

func promote(value any) ([]vswitch.MAC, error) {
	const want = `want a list of taps' MAC addresses, like ["fe:54:00:12:34:56"]`
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%s, have %s", want, kind(value))
	}
	var macs []vswitch.MAC
	for _, v := range list {
		text, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("%s, have %s in it", want, kind(v))
		}
		mac, err := vswitch.ParseMAC(text)
		if err != nil {
			return nil, fmt.Errorf("%s, have %q in it", want, text)
		}
		macs = append(macs, mac)
	}
	return macs, nil
}

func bulkFrame(value any) (int, error) {
	n, ok := value.(int64)
	if !ok || n < 0 || n != 0 && n < MinBulkFrame || n > MaxBulkFrame {
		return 0, fmt.Errorf("want a number of bytes from %d to %d, or 0 for never, have %s", MinBulkFrame, MaxBulkFrame, kind(value))
	}
	return int(n), nil
}

func fdbPerPort(value any) (int, error) {
	n, ok := value.(int64)
	if !ok || n < MinFDBPerPort || n > MaxFDBPerPort {
		return 0, fmt.Errorf("want a number of addresses from %d to %d, have %s", MinFDBPerPort, MaxFDBPerPort, kind(value))
	}
	return int(n), nil
}

func boolean(value any) (bool, error) {
	b, ok := value.(bool)
	if !ok {
		return false, fmt.Errorf("want true or false without quotes, have %s", kind(value))
	}
	return b, nil
}

func target(value any) (string, error) {
	const want = `want a socket's path, a URI like "qemu:///system", or "off"`
	text, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s, have %s", want, kind(value))
	}
	if text == LibvirtOff {
		return text, nil
	}
	_, err := libvirt.ParseTarget(text)
	return text, err
}

func socket(value any) (string, error) {
	const want = `want a path from the root on, like "/run/tapswitch/tapswitchd.sock"`
	path, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s, have %s", want, kind(value))
	}
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s, have %q", want, path)
	}
	return path, nil
}

func metrics(value any) (string, error) {
	const want = `want an address to listen on, like "127.0.0.1:9752", or "" for none`
	addr, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s, have %s", want, kind(value))
	}
	if addr == "" {
		return "", nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("%s, have %q", want, addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("%s, have %q: the port is a number from 1 to 65535", want, addr)
	}
	return addr, nil
}

func level(value any) (slog.Level, error) {
	i, err := oneOf(value, []string{"debug", "info", "warn", "error"})
	return slog.LevelDebug + slog.Level(i)*(slog.LevelInfo-slog.LevelDebug), err
}

// oneOf gives the index of the name that the value is.
func oneOf(value any, names []string) (int, error) {
	name, ok := value.(string)
	if !ok {
		return 0, fmt.Errorf("want one of %s in quotes, have %s", strings.Join(names, ", "), kind(value))
	}
	i := slices.Index(names, name)
	if i < 0 {
		return 0, fmt.Errorf("unknown value %q: %s", name, suggest.Hint(name, names))
	}
	return i, nil
}

func duration(value any, least, most time.Duration) (time.Duration, error) {
	const want = `want a duration with its unit in quotes, like "2s"`
	text, ok := value.(string)
	if !ok {
		return 0, fmt.Errorf("%s, have %s", want, kind(value))
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s, have %q", want, text)
	}
	if d < least || d > most {
		return 0, errors.New("want " + least.String() + " to " + most.String() + ", have " + d.String())
	}
	return d, nil
}

// kind names the type of a value as TOML does.
func kind(value any) string {
	switch v := value.(type) {
	case string:
		return "a string"
	case int64:
		return fmt.Sprintf("the number %d", v)
	case float64:
		return fmt.Sprintf("the number %g", v)
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	case time.Time:
		return "a date"
	}
	return fmt.Sprintf("a %T", value)
}
