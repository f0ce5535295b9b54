// Package kernels runs the host's tests in guests: some with one kernel by default, and
// all with all kernels that there are if told to. It keeps the table of what each can do.
package kernels

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/initramfs"
	"github.com/tapswitch/tapswitch/testvm/kernel"
	"github.com/tapswitch/tapswitch/testvm/kernels/feature"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/qemu"
)

var (
	names  = flag.String("kernels", "", `names of the kernels to test, separated by commas, or "all"; make test-kernels sets it`)
	only   = flag.String("suites", "", "names of the packages to test, separated by commas; all if empty")
	update = flag.Bool("update", false, "write docs/kernels.md anew")
)

// A suite is a package whose tests run in guests.
type suite struct {
	path string // of the package
	args []string
	// quick are the arguments where one kernel is to show in a minute what this
	// machine's may lack, above all VLANs. Without any the suite is left out then.
	quick []string
}

// What needs minutes of an emulated CPU and asks the kernel nothing is left out.
var suites = []suite{
	{
		"hostbpf", []string{"-test.skip", "^(TestBothBucketsFull|TestTableTakesItsCapacity|TestTableAgainstMap)$"},
		[]string{"-test.skip", "^(TestBothBucketsFull|TestTable.*|TestFlood.*|TestRoom.*|TestWhichEntry.*|TestBulk.*|TestD10.*|TestDatapathKeepsContract)$"},
	},
	{"vswitch/bridge", nil, []string{"-test.run", "VLAN"}},
	{"vswitch/policy", nil, nil},
	{"testvm/lab", nil, nil},
	{"testvm/oracle", []string{"-frames", "2000"}, nil},
	{
		// Not what measures memory and time.
		"cmd/tapswitchd", []string{"-test.run", "^(TestReachability|TestBulkIsMerged|TestUnmergedGuest|TestWithoutXDP|TestPromotion|" +
			"TestRestart|TestStop.*|TestTopology.*|TestPolic.*|TestForeign.*|TestVLANs.*|TestLatencyOfVLANs)$"},
		[]string{"-test.run", "^(TestVLANs.*|TestLatencyOfVLANs)$"},
	},
}

func (s suite) name() string { return filepath.Base(s.path) }

// modules are what the tests use. Kernels that lack one go without.
var modules = []string{
	"bridge", "veth", "tun", "8021q", "bonding", "dummy", "br_netfilter", "macvlan", "macvtap", "vxlan", "ifb",
	"sch_ingress", "sch_htb", "sch_tbf", "sch_fq_codel", "sch_netem", "sch_prio", "sch_fq",
	"cls_bpf", "cls_u32", "cls_flower", "cls_matchall", "cls_basic", "act_mirred", "act_police", "act_gact",
	"nf_tables", "nft_compat", "nft_ct", "nft_limit", "nft_log", "nft_meta_bridge", "nft_reject_bridge",
	"nft_fwd_netdev", "nft_dup_netdev", "nft_chain_nat", "nft_masq", "nf_conntrack_bridge",
	"ip_tables", "iptable_filter", "iptable_nat", "iptable_mangle", "iptable_raw",
	"ip6_tables", "ip6table_filter", "arp_tables", "arptable_filter",
	"ebtables", "ebtable_filter", "ebtable_nat", "ebtable_broute", "xt_conntrack", "xt_physdev", "xt_comment", "xt_tcpudp",
}

// interesting are modules that this machine's kernel may lack, and the table shows.
var interesting = []string{"vhost_net", "openvswitch", "bonding", "pktgen", "ebtables", "netdevsim", "nf_flow_table"}

// TestKernel runs the quick tests on one kernel.
func TestKernel(t *testing.T) {
	if *names != "" {
		t.Skip("TestKernels has it all")
	}
	qemu.Need(t)
	var quick []suite
	for _, s := range wanted() {
		if s.args = s.quick; s.args != nil {
			quick = append(quick, s)
		}
	}
	test(t, qemu.DefaultKernel, build(t, quick), quick)
}

func TestKernels(t *testing.T) {
	if *names == "" {
		t.Skip("takes many minutes: run it by 'make test-kernels'")
	}
	list := strings.Split(*names, ",")
	if *names == "all" {
		list = kernel.Names()
	}
	files := build(t, wanted())
	var columns []feature.Column
	for _, name := range list {
		t.Run(name, func(t *testing.T) {
			columns = append(columns, test(t, name, files, wanted()))
		})
	}
	table := feature.Table(columns)
	fmt.Println(table)
	if *names == "all" && len(columns) == len(list) {
		compare(t, table)
	}
}

// build builds what runs in the guests: path there → path here.
func build(t *testing.T, suites []suite) map[string]string {
	t.Helper()
	dir := t.TempDir()
	files := make(map[string]string)
	run := func(name string, args ...string) {
		out := filepath.Join(dir, name)
		cmd := exec.Command("go", append(args[:len(args)-1], "-o", out, "../../"+args[len(args)-1])...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", name, err, text)
		}
		files["/bin/"+name] = out
	}
	run("probe", "build", "-ldflags", "-s -w", "testvm/kernels/probe")
	run("tapswitchd", "build", "-ldflags", "-s -w", "cmd/tapswitchd")
	for _, name := range []string{"ip", "bridge", "tc", "sh", "cat", "true", "readlink"} {
		if err := initramfs.AddTool(files, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range suites {
		run(s.name()+".test", "test", "-c", "-ldflags", "-s -w", s.path)
	}
	return files
}

func wanted() []suite {
	if *only == "" {
		return suites
	}
	return slices.DeleteFunc(slices.Clone(suites), func(s suite) bool {
		return !slices.Contains(strings.Split(*only, ","), s.name())
	})
}

// test runs everything in one guest, and gives what the kernel can do.
func test(t *testing.T, name string, files map[string]string, suites []suite) feature.Column {
	cache := &kernel.Cache{Log: os.Stderr}
	k, err := cache.Fetch(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	g, err := qemu.Machine{
		Kernel:  name,
		Cache:   cache,
		Memory:  2048,
		Modules: slices.DeleteFunc(slices.Clone(modules), func(m string) bool { return !has(t, k, m) }),
		Files:   files,
		Env:     []string{lab.DaemonEnv + "=/bin/tapswitchd"},
		NICs:    []qemu.NIC{{}},
		Timeout: time.Hour,
	}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)

	// As Debian names it, without the revision of the build.
	column := feature.Column{Name: version(g.Release)}
	var out, notes bytes.Buffer
	if err := g.Run(t.Context(), qemu.Command{Args: []string{"/bin/probe"}, Stdout: &out, Stderr: &notes}); err != nil {
		t.Errorf("%v\n%s", err, &notes)
	} else if err := json.Unmarshal(out.Bytes(), &column.Features); err != nil {
		t.Errorf("reading what the probe has found: %v: %s", err, &out)
	}
	t.Logf("Linux %s\n%s", g.Release, &notes)
	for _, m := range interesting {
		value := "no"
		if has(t, k, m) {
			value = "yes"
		}
		column.Features = append(column.Features, feature.Feature{Name: "module " + m, Value: value})
	}
	for _, s := range suites {
		t.Run(s.name(), func(t *testing.T) {
			var out bytes.Buffer
			c := qemu.Command{
				Args:   append([]string{"/bin/" + s.name() + ".test", "-test.v"}, s.args...),
				Stdout: &out, Stderr: &out,
			}
			if err := g.Run(t.Context(), c); err != nil {
				t.Errorf("%v\n%s", err, failures(out.String()))
			}
			for line := range strings.Lines(out.String()) {
				if _, skipped, ok := strings.Cut(line, "SKIPPED: "); ok {
					t.Logf("without %s", strings.TrimSpace(skipped))
				}
			}
		})
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	return column
}

func has(t *testing.T, k *kernel.Kernel, module string) bool {
	t.Helper()
	has, err := k.Has(module)
	if err != nil {
		t.Fatal(err)
	}
	return has
}

// version gives major and minor number of a release.
func version(release string) string {
	parts := strings.SplitN(release, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// failures leaves out what a verbose run says of tests that passed.
func failures(out string) string {
	var b, test strings.Builder
	for line := range strings.Lines(out) {
		switch {
		case strings.HasPrefix(line, "=== RUN   ") && !strings.Contains(line, "/"):
			test.Reset()
		case strings.HasPrefix(line, "--- PASS"):
			test.Reset()
			continue
		case strings.HasPrefix(line, "--- FAIL"):
			b.WriteString(test.String())
			test.Reset()
		}
		if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(strings.TrimSpace(line), "--- PASS") {
			test.WriteString(line)
		}
	}
	b.WriteString(test.String())
	return b.String()
}

// compare holds the table against that in the documentation.
func compare(t *testing.T, table string) {
	const path = "../../docs/kernels.md"
	const begin, end = "<!-- table -->\n", "<!-- end of table -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks around its table", path)
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != table {
		t.Errorf("%s has another table: write it anew by 'make test-kernels TESTFLAGS=-update'", path)
	}
}
