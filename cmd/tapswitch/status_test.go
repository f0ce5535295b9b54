package main

import (
	"testing"
	"time"
)

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                    "0 s",
		59 * time.Second:                "59 s",
		61 * time.Second:                "1 min 1 s",
		2*time.Hour + 59*time.Minute:    "2 h 59 min",
		49*time.Hour + time.Millisecond: "2 d 1 h",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
}
