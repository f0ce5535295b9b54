// Package feature has what a kernel was found to have, and lays it out.
package feature

import (
	"fmt"
	"strings"
)

// A Feature is one thing that kernels have or lack.
type Feature struct {
	Name  string
	Value string // "yes", "no", or in what way
}

// A Column is a kernel.
type Column struct {
	Name     string
	Features []Feature
}

// Table lays kernels out side by side, in Markdown. All columns have the rows of
// the one that has the most.
func Table(columns []Column) string {
	var rows []string
	values := make([]map[string]string, len(columns))
	for i, c := range columns {
		values[i] = make(map[string]string)
		for _, f := range c.Features {
			values[i][f.Name] = f.Value
		}
		if len(c.Features) > len(rows) {
			rows = rows[:0]
			for _, f := range c.Features {
				rows = append(rows, f.Name)
			}
		}
	}
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.Name)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(columns)) + "\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |", r)
		for i := range columns {
			value, ok := values[i][r]
			if !ok {
				value = "–"
			}
			fmt.Fprintf(&b, " %s |", value)
		}
		b.WriteString("\n")
	}
	return b.String()
}
