package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// keyring has the keys that sign Debian's releases.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// An apt is a run of Debian's package tools with a state of its own: what this
// machine has installed and configured is neither asked nor changed, but for the
// mirror.
type apt struct {
	dir     string
	options []string
}

// newApt makes the state below dir and reads the suites' lists.
func newApt(ctx context.Context, dir string, suites []string) (*apt, error) {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: kernels come from Debian, by its own tools (packages apt, dpkg)", err)
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return nil, fmt.Errorf("finding the keys of Debian's releases: %w: install debian-archive-keyring", err)
	}
	mirror, err := findMirror(ctx)
	if err != nil {
		return nil, err
	}
	a := &apt{dir: dir}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "sources", "archives"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	var sources strings.Builder
	for _, suite := range suites {
		fmt.Fprintf(&sources, "deb [arch=amd64 target=Packages signed-by=%s] %s %s main\n", keyring, mirror, suite)
	}
	if err := os.WriteFile(filepath.Join(dir, "sources", "debian.list"), []byte(sources.String()), 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return nil, err
	}
	for _, o := range []string{
		"Dir::State=" + dir,
		"Dir::State::status=" + filepath.Join(dir, "status"),
		"Dir::Cache=" + filepath.Join(dir, "cache"),
		"Dir::Etc::SourceList=/dev/null",
		"Dir::Etc::SourceParts=" + filepath.Join(dir, "sources"),
		"APT::Architecture=amd64",
		"APT::Architectures=amd64",
		// Root's cache is closed to the user that apt would become.
		"APT::Sandbox::User=",
		"Acquire::Retries=3",
	} {
		a.options = append(a.options, "-o", o)
	}
	if _, err := a.run(ctx, "apt-get", "-q", "--error-on=any", "update"); err != nil {
		return nil, fmt.Errorf("reading what %s has of Debian %s: %w", mirror, strings.Join(suites, ", "), err)
	}
	return a, nil
}

func (a *apt) run(ctx context.Context, tool string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, tool, append(slices.Clone(a.options), args...)...)
	cmd.Dir = filepath.Join(a.dir, "archives")
	return output(cmd)
}

// output runs a command; the error has what it wrote to standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running %s: %w: %s", cmd.Args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// A kernel's packages: one up to 6.18; image, modules and the rest apart later.
var packageName = regexp.MustCompile(`^linux-(?:image|binary|modules|base)-([0-9]\S*-cloud-amd64)$`)

// packages gives the packages of the newest kernel whose release has the prefix.
func (a *apt) packages(ctx context.Context, prefix string) ([]string, error) {
	out, err := a.run(ctx, "apt-cache", "pkgnames", "linux-")
	if err != nil {
		return nil, err
	}
	byRelease := make(map[string][]string)
	newest := ""
	for name := range strings.FieldsSeq(string(out)) {
		m := packageName.FindStringSubmatch(name)
		if m == nil || !strings.HasPrefix(m[1], prefix) {
			continue
		}
		byRelease[m[1]] = append(byRelease[m[1]], name)
		if newest == "" || compareReleases(m[1], newest) > 0 {
			newest = m[1]
		}
	}
	if newest == "" {
		return nil, fmt.Errorf("there is no linux-image-%s*-cloud-amd64 any more", prefix)
	}
	slices.Sort(byRelease[newest])
	return byRelease[newest], nil
}

var number = regexp.MustCompile(`[0-9]+`)

// compareReleases orders releases of kernels by their numbers.
func compareReleases(a, b string) int {
	numbers := func(s string) (n []int) {
		for _, digits := range number.FindAllString(s, -1) {
			i, _ := strconv.Atoi(digits)
			n = append(n, i)
		}
		return n
	}
	return slices.Compare(numbers(a), numbers(b))
}

// download gives the paths of the packages' archives, whose sums apt has checked.
func (a *apt) download(ctx context.Context, packages []string) ([]string, error) {
	if _, err := a.run(ctx, "apt-get", append([]string{"-q", "download"}, packages...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(a.dir, "archives", "*.deb"))
}

// findMirror gives the address of the mirror from which this machine has Debian.
func findMirror(ctx context.Context) (string, error) {
	out, err := output(exec.CommandContext(ctx, "apt-get", "indextargets",
		"--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)/$(LABEL)", "Created-By: Packages"))
	if err != nil {
		return "", fmt.Errorf("finding this machine's mirror of Debian: %w", err)
	}
	return chooseMirror(string(out))
}

// releases are those of Debian that an apt of today may be configured for. They
// are asked only where apt has no lists, and does not know whose they are.
var releases = []string{"bullseye", "bookworm", "trixie", "forky", "sid", "oldoldstable", "oldstable", "stable", "testing", "unstable"}

func chooseMirror(targets string) (string, error) {
	guess := ""
	for line := range strings.Lines(targets) {
		f := strings.Fields(line)
		if len(f) != 4 || f[2] != "main" {
			continue
		}
		switch {
		case f[3] == "Debian/Debian":
			return f[0], nil
		case f[3] == "/" && guess == "" && slices.Contains(releases, f[1]):
			guess = f[0]
		}
	}
	if guess == "" {
		return "", errors.New("apt has no source of Debian's main archive: kernels come from there")
	}
	return guess, nil
}
