package main

import (
	"errors"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	tab := table{columns: []column{left("NAME"), right("N"), left("LAST")}}
	tab.add("ä", 1, "x")
	tab.note("below %s", "ä")
	tab.add("longer", 12345, "")
	var b strings.Builder
	if err := tab.print(&b); err != nil {
		t.Fatal(err)
	}
	want := "NAME        N  LAST\n" +
		"ä           1  x\n" +
		"    below ä\n" +
		"longer  12345\n"
	if b.String() != want {
		t.Errorf("table is\n%q\nwant\n%q", b.String(), want)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestTableWriteError(t *testing.T) {
	tab := table{columns: []column{left("NAME")}}
	if err := tab.print(brokenWriter{}); err == nil || err.Error() != "printing table: no space left" {
		t.Errorf("error %v", err)
	}
}
