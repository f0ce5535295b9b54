package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/aymanbagabas/go-udiff"
	"github.com/digitalocean/go-libvirt"
	"github.com/google/go-cmp/cmp"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/libvirtd"
)

// withLibvirtd tells TestMain that this is the run of a test that has a libvirtd beside it.
const withLibvirtd = "TAPSWITCH_TEST_LIBVIRTD"

func TestMain(m *testing.M) {
	if os.Getenv(withLibvirtd) != "" {
		lab.Main(m)
	}
	os.Exit(m.Run())
}

// besideLibvirtd runs the test again in namespaces of its own, where it can have a
// libvirtd, and says whether this is the outer run, which has nothing more to do.
func besideLibvirtd(t *testing.T) (outer bool) {
	if os.Getenv(withLibvirtd) != "" {
		return false
	}
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("this test needs root")
		}
		t.Skip("SKIPPED: this test needs root")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), withLibvirtd+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	return true
}

const richDomain = "../../libvirt/testdata/rich.xml"

func TestDomainCheck(t *testing.T) {
	c := newConsole(t, nil)
	text, err := os.ReadFile(richDomain)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ golden, args, stdin string }{
		{"domain-check.txt", "domain check " + richDomain, ""},
		{"domain-check.json", "domain check --json " + richDomain, ""},
		{"domain-check-stdin.txt", "domain check -", string(text)},
		{"domain-check-network.txt", "domain check -", "<domain><name>a\u202eb</name><devices><interface type='network'><mac address='52:54:00:00:00:01'/><source network='out'/><model type='virtio'/></interface></devices></domain>"},
		{"domain-check-none.txt", "domain check -", "<domain><name>bare</name></domain>"},
	} {
		c.stdin = strings.NewReader(tt.stdin)
		if code := c.run(t.Context(), strings.Fields(tt.args)...); code != exitFine {
			t.Errorf("%s: exit code %d: %s", tt.golden, code, &c.stderr)
		}
		golden(t, tt.golden, c.stdout.Bytes())
	}
}

func TestDomainFails(t *testing.T) {
	for _, tt := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"domain check", 2, "tapswitch: accepts 1 arg(s), received 0\nRun 'tapswitch domain check --help' for how to use it.\n"},
		{"domain check ./none.xml", 1, "tapswitch: reading domain XML: open ./none.xml: no such file or directory\n"},
		{"domain check -", 1, "tapswitch: reading domain XML: EOF\n"},
		{"domain check web --connect /nonexistent/sock", 1, "tapswitch: asking libvirt: no daemon has a socket at /nonexistent/sock: file does not exist\n"},
		{"domain check web --connect esx://far/", 2, "tapswitch: reading \"esx://far/\": the daemon must be this host's, reached by its socket, like \"qemu:///system\"\nRun 'tapswitch domain check --help' for how to use it.\n"},
		{"domain tune web --mac 52:54", 2, "tapswitch: parsing MAC address: address 52:54: invalid MAC address\nRun 'tapswitch domain tune --help' for how to use it.\n"},
		{"domain tune web --yes --dry-run", 2, "tapswitch: if any flags in the group [dry-run yes] are set none of the others can be; [dry-run yes] were all set\nRun 'tapswitch domain tune --help' for how to use it.\n"},
	} {
		c := newConsole(t, nil)
		if code := c.run(t.Context(), strings.Fields(tt.args)...); code != tt.code {
			t.Errorf("%s: exit code %d, want %d", tt.args, code, tt.code)
		}
		if d := cmp.Diff(tt.stderr, c.stderr.String()); d != "" {
			t.Errorf("%s: stderr (-want +got):\n%s", tt.args, d)
		}
	}
}

// TestDomainOfLibvirt asks a real libvirtd.
func TestDomainOfLibvirt(t *testing.T) {
	if besideLibvirtd(t) {
		return
	}
	n, err := lab.NewNode("host")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	d, err := libvirtd.Start(t.Context(), n, libvirtd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// The test driver forgets what is defined with its last connection.
	l, err := d.Connect(libvirt.TestDefault)
	if err != nil {
		t.Fatal(err)
	}
	const definition = `<domain type='test'><name>web</name><memory>65536</memory><vcpu>2</vcpu><os><type>hvm</type></os>
<description>keep &lt;this&gt;</description><devices>
<interface type='bridge'><mac address='52:54:00:00:00:01'/><source bridge='br0'/><model type='virtio'/></interface>
<interface type='network'><mac address='52:54:00:00:00:02'/><source network='default'/><model type='e1000'/></interface>
</devices></domain>`
	dom, err := l.DomainDefineXMLFlags(definition, 0)
	if err != nil {
		t.Fatal(err)
	}
	defined := func() string {
		t.Helper()
		text, err := l.DomainGetXMLDesc(dom, libvirt.DomainXMLInactive)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	c := newConsole(t, nil)
	run := func(stdin string, code int, args ...string) string {
		t.Helper()
		c.stdin = strings.NewReader(stdin)
		if got := c.run(t.Context(), append(args, "--connect", "test:///default?socket="+d.Socket)...); got != code {
			t.Errorf("%q: exit code %d, want %d; stderr: %s", args, got, code, &c.stderr)
		}
		return c.stdout.String()
	}
	changed := func(diff string) (lines []string) {
		for line := range strings.Lines(diff) {
			if (line[0] == '+' || line[0] == '-') && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "+++") {
				lines = append(lines, line[:1]+" "+strings.TrimSpace(line[1:]))
			}
		}
		return lines
	}

	if out := run("", exitFine, "domain", "check", "web"); !strings.Contains(out, "Domain web (defined), vCPUs: 2") || !strings.Contains(out, "the host routes what goes out of network default") {
		t.Errorf("check prints\n%s", out)
	}
	if out := run("", exitFine, "domain", "check", "test"); !strings.Contains(out, "Domain test (running), vCPUs: 2") {
		t.Errorf("check of the driver's own domain prints\n%s", out)
	}
	before := defined()
	want := []string{"+ <driver queues='4'/>"}
	if d := cmp.Diff(want, changed(run("", exitFine, "domain", "tune", "web", "--dry-run"))); d != "" {
		t.Errorf("tune changes (-want +got):\n%s", d)
	}
	run("n\n", exitFailed, "domain", "tune", "web")
	if got := c.stderr.String(); got != "tapswitch: nothing changed\n" {
		t.Errorf("after no: stderr %q", got)
	}
	run("", exitFailed, "domain", "tune", "web")
	if got := c.stderr.String(); got != "tapswitch: nothing changed: nobody is there to answer; use --yes\n" {
		t.Errorf("without an answer: stderr %q", got)
	}
	if d := cmp.Diff(before, defined()); d != "" {
		t.Errorf("changed without a yes:\n%s", d)
	}
	run("y\n", exitFine, "domain", "tune", "web")
	after := defined()
	if d := cmp.Diff(want, changed(udiff.Unified("", "", before, after))); d != "" {
		t.Errorf("the definition changes (-want +got):\n%s", d)
	}
	if out := run("", exitFine, "domain", "tune", "web"); out != "Nothing to change.\n" {
		t.Errorf("tune of a tuned domain prints\n%s", out)
	}
	run("", exitFine, "domain", "tune", "web", "--yes", "--virtio", "--native-xdp", "--mac", "52:54:00:00:00:02")
	want = []string{"- <model type='e1000'/>", "+ <model type='virtio'/>", "+ <driver queues='4'>", "+ <host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/>", "+ </driver>"}
	if d := cmp.Diff(want, changed(udiff.Unified("", "", after, defined()))); d != "" {
		t.Errorf("the definition changes (-want +got):\n%s", d)
	}
	run("", exitFailed, "domain", "tune", "nobody")
	if got := c.stderr.String(); got != "tapswitch: reading domain nobody: libvirt has none of that name: file does not exist\n" {
		t.Errorf("nobody: stderr %q", got)
	}
	if _, err := l.DomainCreateWithFlags(dom, 0); err != nil {
		t.Fatal(err)
	}
	if out := run("", exitFine, "domain", "check", "web"); !strings.Contains(out, "Domain web (running), vCPUs: 2") {
		t.Errorf("check of a running domain prints\n%s", out)
	}
}
