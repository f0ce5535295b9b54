// Package kernel keeps Debian's kernels for virtual machines in a cache, ready to
// boot, with their modules.
package kernel

import (
	"fmt"
	"slices"
	"strings"
)

// A series is a line of kernels that Debian keeps.
type series struct {
	name   string
	suites []string // of Debian, that have it
	prefix string   // of its releases
}

// Only amd64: these are the kernels of QEMU guests on a host of any kind.
var all = []series{
	{"5.10", []string{"bullseye"}, "5.10."},
	{"6.1", []string{"bookworm"}, "6.1."},
	{"6.12", []string{"trixie"}, "6.12."},
	{"6.18", []string{"trixie-backports"}, "6.18."},
	{Newest, []string{"trixie-backports", "sid"}, ""},
}

// Newest names the newest kernel that Debian has released.
const Newest = "newest"

// Names gives the names of the kernels that there are, oldest first.
func Names() []string {
	var names []string
	for _, s := range all {
		names = append(names, s.name)
	}
	return names
}

func find(name string) (series, error) {
	i := slices.IndexFunc(all, func(s series) bool { return s.name == name })
	if i < 0 {
		return series{}, fmt.Errorf("unknown kernel %q: there are %s", name, strings.Join(Names(), ", "))
	}
	return all[i], nil
}
