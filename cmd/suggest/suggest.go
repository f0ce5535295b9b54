// Package suggest finds what a person meant by a word that is not known.
package suggest

import (
	"fmt"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Nearest gives the known word that is the fewest edits away from word, if it is
// near enough to be what was meant; of several, the one that begins like it for
// longest. Case does not count.
func Nearest(word string, known []string) (nearest string, ok bool) {
	word = strings.ToLower(word)
	// Two letters that have changed places are two edits, so half may be wrong.
	least, longest := max(1, len(word)/2), -1
	for _, k := range known {
		lower := strings.ToLower(k)
		edits, prefix := levenshtein.ComputeDistance(word, lower), commonPrefix(word, lower)
		if edits < least || edits == least && prefix > longest {
			least, longest, nearest, ok = edits, prefix, k, true
		}
	}
	return nearest, ok
}

func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Hint gives the end of an error message: the nearest known word if there is
// one, else all of them.
func Hint(word string, known []string) string {
	if n, ok := Nearest(word, known); ok {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return "want one of " + strings.Join(known, ", ")
}
