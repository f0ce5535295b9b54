package kernel

import (
	"slices"
	"testing"
)

func TestChooseMirror(t *testing.T) {
	for name, test := range map[string]struct{ targets, want string }{
		"by its label": {
			"http://other.example/apt bookworm main Other/Debian\n" +
				"http://sec.example/debian-security/ bookworm-security main Debian/Debian-Security\n" +
				"http://mirror.example/debian/ bookworm main Debian/Debian\n",
			"http://mirror.example/debian/",
		},
		"without lists": {
			"http://sec.example/debian-security/ bookworm-security main /\n" +
				"http://other.example/apt vendor-bookworm main /\n" +
				"http://mirror.example/debian/ bookworm main /\n",
			"http://mirror.example/debian/",
		},
		"another distribution": {"http://mirror.example/ubuntu/ noble main Ubuntu/Ubuntu\n", ""},
		"none":                 {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooseMirror(test.targets)
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("chose %q (%v), want %q", got, err, test.want)
			}
		})
	}
}

func TestCompareReleases(t *testing.T) {
	want := []string{
		"5.10.0-9-cloud-amd64", "5.10.0-32-cloud-amd64", "6.12.9+deb13-cloud-amd64",
		"6.12.117+deb13-cloud-amd64", "6.12.117+deb14-cloud-amd64", "7.3.4+deb13-cloud-amd64",
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareReleases)
	if !slices.Equal(got, want) {
		t.Errorf("releases are in the order %q", got)
	}
}
