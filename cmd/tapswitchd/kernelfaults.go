package main

import (
	"fmt"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// A kernelFault is one of the kernel's that guests can use against the host, with the
// fast path and without.
type kernelFault struct {
	id, what string
	// fixed are the first releases of each series that have it no more, first the
	// first series that never had it.
	mainline [2]int
	fixed    map[[2]int]int
}

// D16: what vhost-net hands to a tap of frames that are shorter than Ethernet's header.
// The first fault ended when they came to be refused, and then the second began. The
// releases are those of the CVEs' records.
var shortFrameFaults = []kernelFault{
	{
		id: "CVE-2024-41091", what: "have the host read past the end of frames", mainline: [2]int{6, 11},
		fixed: map[[2]int]int{{5, 4}: 281, {5, 10}: 223, {5, 15}: 164, {6, 1}: 102, {6, 6}: 43, {6, 9}: 12, {6, 10}: 2},
	},
	{
		id: "CVE-2026-46321", what: "use up the host's memory", mainline: [2]int{7, 1},
		fixed: map[[2]int]int{{5, 10}: 259, {5, 15}: 210, {6, 1}: 176, {6, 6}: 143, {6, 12}: 93, {6, 18}: 35, {7, 0}: 12},
	},
}

// kernelWarnings says of which faults the kernel's version speaks. Distributions that
// keep a series' first number and add patches (6.8.0-60-generic) don't tell, so nothing
// is said of theirs.
func kernelWarnings(u unix.Utsname) []string {
	v, ok := kernelVersion(unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]))
	if !ok {
		return nil
	}
	for _, f := range shortFrameFaults {
		series := [2]int{v[0], v[1]}
		patch, patched := f.fixed[series]
		if !before(series, f.mainline) || patched && v[2] >= patch {
			continue
		}
		fix := fmt.Sprintf("%d.%d", f.mainline[0], f.mainline[1])
		if patched {
			fix = fmt.Sprintf("%d.%d.%d", v[0], v[1], patch)
		}
		return []string{fmt.Sprintf(
			"your kernel's version, %d.%d.%d, suggests that guests can %s by frames shorter than Ethernet's header, where vhost-net serves them (%s, fixed in %s), with the fast path and without: update the kernel, or ask who made it whether it has the fix",
			v[0], v[1], v[2], f.what, f.id, fix)}
	}
	return nil
}

func before(a, b [2]int) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }

var (
	releaseNumber = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)(.*)`)
	// Debian's kernels up to 6.1 tell only there.
	debianNumber = regexp.MustCompile(` Debian (\d+)\.(\d+)\.(\d+)()`)
)

// kernelVersion gives the kernel.org release that a kernel was made from.
func kernelVersion(release, version string) (v [3]int, ok bool) {
	m := debianNumber.FindStringSubmatch(version)
	if m == nil {
		if m = releaseNumber.FindStringSubmatch(release); m == nil || m[3] == "0" && m[4] != "" {
			return v, false
		}
	}
	for i := range v {
		n, err := strconv.Atoi(m[i+1])
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

// uname asks the kernel for its name.
func uname() (u unix.Utsname) {
	if err := unix.Uname(&u); err != nil {
		return unix.Utsname{}
	}
	return u
}
