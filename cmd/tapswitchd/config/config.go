// Package config reads the daemon's configuration. All of it is optional:
// without a file the daemon does the right thing.
package config

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/tapswitch/tapswitch/hostbpf"
	"github.com/tapswitch/tapswitch/vswitch"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

// DefaultPath is where the configuration is looked for if no path is given.
const DefaultPath = "/etc/tapswitch/tapswitch.toml"

// Bounds of Config.Lease. Below the least, an ordinary delay of the daemon would
// stop the fast path; above the most, guests would miss too much of what the
// bridge decides while a dead daemon's datapath goes on.
const (
	MinLease = 500 * time.Millisecond
	MaxLease = time.Minute
)

// Reference is the commented configuration file that documents every key.
//
//go:embed tapswitch.toml
var Reference string

// LibvirtOff is Config.Libvirt for no libvirt.
const LibvirtOff = "off"

// Bounds of Config.BulkFrame and Config.BulkIdle. A pure ACK is never bulk; and a
// flow that comes back to XDP within a burst is reordered.
const (
	MinBulkFrame = 128
	MaxBulkFrame = 9000
	MinBulkIdle  = 50 * time.Millisecond
	MaxBulkIdle  = time.Minute
)

// Bounds of Config.FDBPerPort. The default is far more than a guest has that is no
// router or switch itself, and at it 256 guests that all flood take 60 MB.
const (
	DefaultFDBPerPort = 1024
	MinFDBPerPort     = 1
	MaxFDBPerPort     = int64(hostbpf.FDBCapacity)
)

// A Config is what can be set. Default gives what holds where nothing is.
type Config struct {
	// Uplinks names devices to take as uplinks beside those that are known by
	// their kind.
	Uplinks []string
	// XDP says which uplinks get native XDP.
	XDP vswitch.XDPMode
	// ShowTags names the devices whose rxvlan offload may be switched off.
	ShowTags hostbpf.Devices
	// Promote names the taps, by their own MAC, whose guests send complete frames
	// alone; they get native XDP.
	Promote []vswitch.MAC
	// AcceptBypass names bridges whose frames may go past the rules and limits that
	// decide over them beside the bridge.
	AcceptBypass []string
	// Libvirt is the daemon whose domains are behind the taps, as libvirt.ParseTarget
	// takes it, or LibvirtOff to ask none.
	Libvirt string
	// Socket is the path of the control API's socket.
	Socket string
	// Metrics is the address that Prometheus metrics are served on; empty for
	// the control socket alone.
	Metrics string
	// Log is the lowest level that is logged.
	Log slog.Level
	// Lease is how long the datapath may act without the daemon renewing its
	// deadline.
	Lease time.Duration
	// BulkFrame is the length in bytes from which on a TCP frame makes its flow
	// bulk; 0 for never. BulkIdle is how long such a flow must send none to be one
	// no more.
	BulkFrame int
	BulkIdle  time.Duration
	// FDBPerPort is how many learned addresses behind one port that is no uplink the
	// fast path takes.
	FDBPerPort int
	// Strict says that libvirt's hook keeps a guest from starting whom it can't hand
	// over to the daemon.
	Strict bool
}

// Default gives the configuration that holds without a file.
func Default() Config {
	return Config{
		Socket: control.DefaultSocket,
		Log:    slog.LevelInfo,
		Lease:  2 * time.Second,

		BulkFrame: hostbpf.DefaultBulkFrame,
		BulkIdle:  hostbpf.DefaultBulkIdle,

		FDBPerPort: DefaultFDBPerPort,
	}
}

// Load reads the configuration at path. An empty path stands for DefaultPath,
// where no file means the defaults; a path that is given must lead to a file.
// Errors name file and line, and what to write instead.
func Load(path string) (Config, error) {
	return load(path, DefaultPath)
}

func load(path, defaultPath string) (Config, error) {
	optional := path == ""
	if optional {
		path = defaultPath
	}
	text, err := os.ReadFile(path)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("reading configuration: %w", err)
	}
	return Parse(path, string(text))
}

// Parse reads a configuration from text; name stands for it in errors, of which
// it gives all that it finds.
func Parse(name, text string) (Config, error) {
	c := Default()
	// Values stay undecoded at first, because the parser tells the line of a key
	// only through an error of that key's own decoder.
	var values map[string]toml.Primitive
	md, err := toml.Decode(text, &values)
	if err != nil {
		return Config{}, located(name, err)
	}
	var errs []error
	done := map[string]bool{}
	for _, key := range md.Keys() {
		if done[key[0]] {
			continue
		}
		done[key[0]] = true
		value, err := descend(&md, values, key)
		if err == nil {
			err = md.PrimitiveDecode(value, &setting{key: key, config: &c})
		}
		if err != nil {
			errs = append(errs, located(name, err))
		}
	}
	if len(errs) > 0 {
		return Config{}, errors.Join(errs...)
	}
	return c, nil
}

// descend gives the value of a dotted key.
func descend(md *toml.MetaData, values map[string]toml.Primitive, key toml.Key) (toml.Primitive, error) {
	for _, table := range key[:len(key)-1] {
		var inner map[string]toml.Primitive
		if err := md.PrimitiveDecode(values[table], &inner); err != nil {
			return toml.Primitive{}, err
		}
		values = inner
	}
	return values[key[len(key)-1]], nil
}

// located puts file and line in front of an error of the parser.
func located(name string, err error) error {
	if parse := (toml.ParseError{}); errors.As(err, &parse) {
		return fmt.Errorf("%s:%d: %s", name, parse.Position.Line, parse.Message)
	}
	return fmt.Errorf("%s: %w", name, err)
}
