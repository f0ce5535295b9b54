package oracle

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var (
	keep   = flag.String("keep", keptDir, "the directory into which a case that differs is written once it is small, or - for the standard output")
	shrink = flag.Duration("shrink", 5*time.Minute, "how long at most a smaller case is looked for that differs still")
)

// keptDir has the cases in which the hosts once differed.
const keptDir = "testdata"

// TestKept replays the cases that were kept.
func TestKept(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(keptDir, "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases in %s: %v", keptDir, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c, err := ReadCase(path)
			if err != nil {
				t.Fatal(err)
			}
			c.Daemon, c.Log = daemonPath, t.Output()
			err = c.Replay(t.Context())
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skipf("SKIPPED: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// shrinkAndKeep writes a small case into a file that TestKept replays from then on.
func shrinkAndKeep(t *testing.T, c *Case, d *Difference) {
	t.Helper()
	c.Log = io.Discard
	steps := len(c.Steps)
	small, runs := c.Shrink(t.Context(), d.late, *shrink)
	if small == nil {
		t.Logf("the %d steps that led there did not lead there again in %d runs, so no case is kept", steps, runs)
		return
	}
	text, err := small.Text()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d steps lead there, found in %d runs", len(small.Steps), steps, runs)
	if *keep == "-" {
		fmt.Printf("%s\n%s", keptMark, text)
		return
	}
	path := filepath.Join(*keep, fmt.Sprintf("%x.json", sha256.Sum256(text))[:8]+".json")
	if err := errors.Join(os.MkdirAll(*keep, 0o755), os.WriteFile(path, text, 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Logf("kept as %s", path)
}

// keptMark goes before a kept case on the standard output.
const keptMark = "kept case:"
