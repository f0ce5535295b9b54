// Package hookcall is what libvirt's hook scripts run: it hands over to the daemon what
// libvirt tells. A guest's start waits for it, so it imports little (see
// vswitch/control/handover).
package hookcall

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/syslog"
	"strings"
	"time"
	"unicode"

	"github.com/BurntSushi/toml"

	"github.com/tapswitch/tapswitch/vswitch/control/handover"
)

// How long a guest's start may wait for a hook: for the XML, which libvirt writes at
// once; for room in the daemon's socket, of which there is enough for most guests' XML;
// for the daemon's answer with strict; and for the log.
const (
	inputTime  = 2 * time.Second
	handTime   = 5 * time.Millisecond
	strictTime = 2 * time.Second
	logTime    = 5 * time.Millisecond
)

const (
	maxXML = 1 << 20 // bytes
	// configPath is where the daemon's configuration is looked for.
	configPath = "/etc/tapswitch/tapswitch.toml"
)

// roots are the drivers whose hooks matter, with the root elements of what they tell.
var roots = map[string]string{"qemu": "domain", "network": "hookData"}

// A Hook is one call of a hook script, and all that it has of the world around it.
type Hook struct {
	Stdin  io.Reader
	Stderr io.Writer
	After  func(time.Duration) <-chan time.Time
	Log    func(string) // where warnings go beside Stderr; nil for nowhere
	Socket string       // of the daemon
	Config string       // path of the configuration; empty for the usual one, if it is there

	told handover.Hook
}

// Run carries out the call of a driver's hook with its two to four arguments. An error
// keeps the guest from starting; what else goes wrong is a warning alone.
func (h Hook) Run(driver string, args []string) error {
	if roots[driver] == "" || len(args) < 2 || len(args) > 4 {
		return fmt.Errorf("want qemu or network, NAME, OPERATION, and the two arguments more that libvirt gives, have %q", append([]string{driver}, args...))
	}
	args = append(args, "", "")
	h.told = handover.Hook{Driver: driver, Object: args[0], Operation: args[1], SubOperation: args[2], Extra: args[3]}
	strict := false
	if vetoes(h.told) {
		var err error
		if strict, err = readStrict(h.Config); err != nil {
			h.warn(fmt.Errorf("%w; the hook goes on as if it had no configuration", err))
		}
	}
	if err := h.read(); err != nil {
		h.warn(err)
		return nil
	}
	within := handTime
	if strict {
		within = strictTime
	}
	err := h.told.Send(h.Socket, within, strict)
	if err == nil {
		return nil
	}
	h.warn(err)
	// That the daemon can't read the XML is no reason to keep the guest from starting.
	if answer := (*handover.AnswerError)(nil); !strict || errors.As(err, &answer) && answer.StatusCode == 400 {
		return nil
	}
	return errors.New("the guest does not start, because of 'strict = true' in the configuration")
}

// vetoes says whether the script's failure would keep a guest from starting.
func vetoes(h handover.Hook) bool {
	return h.Driver == "qemu" && (h.Operation == "prepare" || h.Operation == "start")
}

// readStrict reads the one setting of the daemon's configuration that is the hook's.
func readStrict(path string) (bool, error) {
	optional := path == ""
	if optional {
		path = configPath
	}
	var c struct {
		Strict bool `toml:"strict"`
	}
	_, err := toml.DecodeFile(path, &c)
	if optional && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", path, err)
	}
	return c.Strict, nil
}

// read reads what libvirt writes to a hook's standard input, and makes sure that it is
// XML of the right kind. What it says is the daemon's to understand.
func (h *Hook) read() error {
	var err error
	read := make(chan struct{})
	go func() {
		defer close(read)
		h.told.XML, err = io.ReadAll(io.LimitReader(h.Stdin, maxXML+1))
	}()
	select {
	case <-read:
	case <-h.After(inputTime):
		return fmt.Errorf("the XML on standard input has not ended for %v", inputTime)
	}
	if err == nil {
		err = check(h.told.XML, roots[h.told.Driver])
	}
	if err != nil {
		return fmt.Errorf("reading the XML on standard input: %w", err)
	}
	return nil
}

// check checks that text is one element of that name, and no longer than it may be.
func check(text []byte, root string) error {
	if len(text) > maxXML {
		return fmt.Errorf("has more than %d bytes", maxXML)
	}
	d := xml.NewDecoder(bytes.NewReader(text))
	seen, depth := false, 0
	for {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF) && seen && depth == 0:
			return nil
		case err != nil:
			return err
		}
		switch token := token.(type) {
		case xml.StartElement:
			if depth == 0 && (seen || token.Name.Local != root) {
				return fmt.Errorf("want one element <%s>, have <%s>", root, token.Name.Local)
			}
			seen = true
			depth++
		case xml.EndElement:
			depth--
		}
	}
}

// warn says what went wrong where a person may find it: libvirt shows what a hook
// writes to standard error only if it fails.
func (h Hook) warn(err error) {
	text := fmt.Sprintf("hook %s %s of %s: %v", h.told.Driver, h.told.Operation, h.told.Object, err)
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
	fmt.Fprintf(h.Stderr, "tapswitch: %s\n", text)
	if h.Log == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Log(text)
	}()
	select {
	case <-done:
	case <-time.After(logTime):
	}
}

// ToSyslog logs a warning if there is a syslog.
func ToSyslog(text string) {
	w, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_WARNING, "tapswitch")
	if err != nil {
		return
	}
	defer w.Close()
	_ = w.Warning(text)
}
