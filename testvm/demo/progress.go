package demo

import (
	"bytes"
	"fmt"
	"io"
	"time"
)

// progress tells what is being done, with the seconds since the beginning.
type progress struct {
	w     io.Writer
	begin time.Time
}

var _ io.Writer = (*progress)(nil)

func newProgress(w io.Writer) *progress {
	if w == nil {
		w = io.Discard
	}
	return &progress{w: w, begin: time.Now()}
}

func (p *progress) elapsed() time.Duration { return time.Since(p.begin) }

// step tells of one thing that begins.
func (p *progress) step(format string, args ...any) {
	fmt.Fprintf(p.w, "[%5.1f s] %s\n", p.elapsed().Seconds(), fmt.Sprintf(format, args...))
}

// Write takes whole lines of those that have progress of their own.
func (p *progress) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		p.step("  %s", bytes.TrimSpace(line))
	}
	return len(b), nil
}
