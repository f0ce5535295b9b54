package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// A Case is what led to a difference: hosts, and what was done to both. Its
// configuration is what is done first.
type Case struct {
	// Why says what was wrong.
	Why string `json:"why"`
	Options
	Steps []step `json:"steps"`
}

// ReadCase reads a case from a file.
func ReadCase(path string) (*Case, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := new(Case)
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("reading the case in %s: %w", path, err)
	}
	return c, nil
}

// Text gives the case as a file has it: one step in each line.
func (c *Case) Text() ([]byte, error) {
	head := *c
	head.Steps = []step{}
	text, err := json.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("writing a case: %w", err)
	}
	b := bytes.NewBuffer(bytes.TrimSuffix(text, []byte("]}")))
	for i, s := range c.Steps {
		line, err := json.Marshal(s)
		if err != nil {
			return nil, fmt.Errorf("writing a step of a case: %w", err)
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(line)
	}
	b.WriteString("\n]}\n")
	return b.Bytes(), nil
}

// Replay does a case's steps to hosts of its own. An error that is a *Difference says
// that they differ.
func (c *Case) Replay(ctx context.Context) (err error) {
	p, err := newPair(ctx, c.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, s := range c.Steps {
		if err := p.do(ctx, s); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return p.finish(ctx)
}
