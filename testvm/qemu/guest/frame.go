// Package guest is the first process of a guest, which runs commands for the host,
// and what the two say to each other.
package guest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// A Kind says what a frame is.
type Kind byte

const (
	// Hello is the guest's first frame: it is ready.
	Hello Kind = iota + 1
	// Run tells the guest to run a command, in a Command. The frame's call is the
	// host's choice; frames about the command have the same.
	Run
	// Kill tells the guest to kill the command and all it has started.
	Kill
	// Stdout and Stderr are what the command wrote.
	Stdout
	Stderr
	// Exit is the command's end, in a Status, and its last frame.
	Exit
	// PowerOff tells the guest to switch itself off.
	PowerOff
)

// A Frame is what goes over the wire between host and guest at once.
type Frame struct {
	Kind    Kind
	Call    uint32
	Payload []byte
}

// maxPayload is far above what either side sends: more is a broken stream.
const maxPayload = 16 << 20

// header is kind, call and length.
const header = 1 + 4 + 4

// A Command is what the guest runs.
type Command struct {
	Args []string
	Env  []string // above that of all commands
	Dir  string
}

// A Status says how a command ended.
type Status struct {
	Code   int    // the exit code, if it exited
	Signal string // what killed it, if it was killed
	Err    string // why it could not be run
}

// A Conn carries frames over a stream. One goroutine may read while others write.
type Conn struct {
	rw io.ReadWriter
	mu sync.Mutex // of writes
}

// NewConn carries frames over rw.
func NewConn(rw io.ReadWriter) *Conn { return &Conn{rw: rw} }

// Send writes a frame.
func (c *Conn) Send(f Frame) error {
	b := make([]byte, header, header+len(f.Payload))
	b[0] = byte(f.Kind)
	binary.LittleEndian.PutUint32(b[1:], f.Call)
	binary.LittleEndian.PutUint32(b[5:], uint32(len(f.Payload)))
	b = append(b, f.Payload...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.rw.Write(b); err != nil {
		return fmt.Errorf("sending to the other side of the machine: %w", err)
	}
	return nil
}

// SendJSON writes a frame whose payload is v.
func (c *Conn) SendJSON(kind Kind, call uint32, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(Frame{kind, call, payload})
}

// Receive reads a frame.
func (c *Conn) Receive() (Frame, error) {
	var h [header]byte
	if _, err := io.ReadFull(c.rw, h[:]); err != nil {
		return Frame{}, err
	}
	length := binary.LittleEndian.Uint32(h[5:])
	if length > maxPayload {
		return Frame{}, fmt.Errorf("receiving a frame of %d bytes: more than %d", length, maxPayload)
	}
	f := Frame{Kind: Kind(h[0]), Call: binary.LittleEndian.Uint32(h[1:]), Payload: make([]byte, length)}
	if _, err := io.ReadFull(c.rw, f.Payload); err != nil {
		return Frame{}, fmt.Errorf("receiving a frame: %w", err)
	}
	return f, nil
}
