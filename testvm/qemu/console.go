package qemu

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
)

// A console keeps the end of what a guest's kernel says.
type console struct {
	also io.Writer

	mu  sync.Mutex
	end []byte
}

// consoleLength bounds what is kept: some screens, enough for a panic.
const consoleLength = 16 << 10

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.also != nil {
		if n, err := c.also.Write(p); err != nil {
			return n, err
		}
	}
	c.end = append(c.end, p...)
	if extra := len(c.end) - consoleLength; extra > 0 {
		c.end = c.end[extra:]
	}
	return len(p), nil
}

// String gives what was said as lines of text, without what steers a terminal.
func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for line := range strings.Lines(string(c.end)) {
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) || r == '\t' {
				return r
			}
			return -1
		}, line))
		if line != "" {
			fmt.Fprintf(&b, "\n  %s", line)
		}
	}
	if b.Len() == 0 {
		return "\n  (nothing)"
	}
	return b.String()
}
