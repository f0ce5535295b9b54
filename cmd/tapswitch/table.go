package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A table prints rows in aligned columns, and notes below the rows that they
// belong to.
//
// The standard library's tabwriter aligns either all columns to the right or
// none, and a note between two rows ends its columns.
type table struct {
	columns []column
	rows    []row
}

type column struct {
	header string
	right  bool
}

type row struct {
	cells []string
	notes []string
}

// left and right make columns by their headers.
func left(header string) column  { return column{header: header} }
func right(header string) column { return column{header: header, right: true} }

// add adds a row; each cell is printed as fmt.Print does.
func (t *table) add(cells ...any) {
	r := row{}
	for _, c := range cells {
		r.cells = append(r.cells, printable(fmt.Sprint(c)))
	}
	t.rows = append(t.rows, r)
}

// note adds a line below the last row.
func (t *table) note(format string, args ...any) {
	last := &t.rows[len(t.rows)-1]
	last.notes = append(last.notes, printable(fmt.Sprintf(format, args...)))
}

// print writes the table with its header.
func (t *table) print(w io.Writer) error {
	widths := make([]int, len(t.columns))
	header := make([]string, len(t.columns))
	for i, c := range t.columns {
		header[i] = c.header
		widths[i] = utf8.RuneCountInString(c.header)
		for _, r := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r.cells[i]))
		}
	}
	b := bufio.NewWriter(w)
	line := func(cells []string) {
		var s strings.Builder
		for i, cell := range cells {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				s.WriteString("  ")
			}
			if t.columns[i].right {
				s.WriteString(pad + cell)
			} else {
				s.WriteString(cell + pad)
			}
		}
		fmt.Fprintln(b, strings.TrimRight(s.String(), " "))
	}
	line(header)
	for _, r := range t.rows {
		line(r.cells)
		for _, n := range r.notes {
			fmt.Fprintln(b, "    "+n)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("printing table: %w", err)
	}
	return nil
}

// printable replaces what would steer a terminal: the kernel takes any bytes in
// a device's name.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '�'
		}
		return r
	}, s)
}
