package vswitch

import (
	"fmt"
	"slices"
)

// enumName gives the name of v, or its number if it has none.
func enumName[T ~uint8 | ~uint32](names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("unknown(%d)", v)
}

// enumParse is the inverse of enumName for values that have a name.
func enumParse[T ~uint8 | ~uint32](names []string, text []byte, v *T) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("parsing %q: want one of %q", text, names)
	}
	*v = T(i)
	return nil
}
