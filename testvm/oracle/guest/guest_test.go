// Package guest runs the oracle on VLAN-aware bridges in a virtual machine, where this
// machine's own kernel has none.
package guest

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/qemu"
)

var (
	kernelName = flag.String("kernel", qemu.DefaultKernel, "name of the guest's kernel")
	frames     = flag.Int("frames", 3000, "how many frames are compared")
	seed       = flag.Uint64("seed", 0, "what determines them, as a failed run has printed it; 0 draws one")
)

// filters says whether this machine's bridges can be VLAN-aware, so that the oracle's
// own tests compare them here.
func filters(t *testing.T) bool {
	t.Helper()
	symbols, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(symbols, []byte(" br_vlan_filter_toggle"))
}

func TestOracleWithVLANs(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	if filters(t) {
		t.Skip("this machine's kernel has VLAN filtering: package oracle compares it there")
	}
	qemu.Need(t)
	dir := t.TempDir()
	files := make(map[string]string)
	for name, args := range map[string][]string{
		"oracle.test": {"test", "-c", ".."},
		"tapswitchd":  {"build", "../../../cmd/tapswitchd"},
	} {
		path := filepath.Join(dir, name)
		cmd := exec.Command("go", append(args[:len(args)-1:len(args)-1], "-ldflags", "-s -w", "-o", path, args[len(args)-1])...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", name, err, out)
		}
		files["/bin/"+name] = path
	}
	cases, err := filepath.Abs(keptDir)
	if err != nil {
		t.Fatal(err)
	}
	files["/testdata"] = cases
	var out strings.Builder
	err = qemu.Run(t.Context(), qemu.Machine{
		Kernel:  *kernelName,
		Memory:  1536, // packet sockets have large buffers
		Modules: []string{"bridge", "veth", "tun", "8021q", "br_netfilter", "sch_ingress", "cls_bpf"},
		Files:   files,
		// A collection costs an emulated CPU more than the memory that it frees.
		Env:     []string{lab.DaemonEnv + "=/bin/tapswitchd", "GOGC=400"},
		Append:  "mitigations=off init_on_alloc=0", // which emulation has no use for
		Timeout: 3 * time.Hour,
		Log:     os.Stderr,
	}, qemu.Command{
		Args: []string{
			"/bin/oracle.test", "-test.v", "-test.timeout", "3h", "-test.run", "^(TestOracleWithVLANs|TestKept)$",
			"-frames", fmt.Sprint(*frames), "-seed", fmt.Sprint(*seed), "-keep", "-",
		},
		Stdout: io.MultiWriter(&out, t.Output()), Stderr: &out,
	})
	keepCase(t, out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"TestOracleWithVLANs", "TestKept"} {
		if !strings.Contains(out.String(), "--- PASS: "+name) {
			t.Errorf("%s did not compare anything", name)
		}
	}
}

// keptDir has the cases in which the hosts once differed.
const keptDir = "../testdata"

// keepCase writes the case that the guest has found into a file.
func keepCase(t *testing.T, out string) {
	t.Helper()
	const end = "\n]}\n"
	_, text, found := strings.Cut(out, "kept case:\n")
	at := strings.Index(text, end)
	if !found || at < 0 {
		return
	}
	text = text[:at+len(end)]
	path := filepath.Join(keptDir, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:8]+".json")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("kept as %s", path)
}
