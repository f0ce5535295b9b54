package bench

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A Table aligns its first column to the left and the others, which hold
// numbers, to the right. text/tabwriter can do only one of both.
type Table struct{ rows [][]string }

// NewTable begins a table with the names of its columns.
func NewTable(heads ...string) *Table { return &Table{rows: [][]string{heads}} }

// Row adds a row, of as many cells as there are heads.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Write writes the table.
func (t *Table) Write(w io.Writer) error {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			width := widths[i]
			if i == 0 {
				width = -width
			}
			cells[i] = fmt.Sprintf("%*s", width, cell)
		}
		if _, err := fmt.Fprintln(w, strings.Join(cells, "  ")); err != nil {
			return err
		}
	}
	return nil
}
