// Package uplinks holds VLAN devices and bonds as uplinks against what the bridge does,
// in a guest whose kernel has them.
package uplinks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/testvm/initramfs"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/qemu"
)

// insideEnv says that the test runs in the guest.
const insideEnv = "TAPSWITCH_TEST_UPLINKS"

var modules = []string{"bridge", "veth", "tun", "8021q", "bonding", "macvlan", "macvtap", "ipvlan", "sch_ingress", "cls_bpf"}

func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		lab.Main(m)
	}
	os.Exit(m.Run())
}

// TestUplinks boots a guest that runs the same program, whose part it runs there.
func TestUplinks(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		_ = t.Run("uplinks", uplinks) &&
			t.Run("802.3ad", func(t *testing.T) { aggregate(t, netlink.BOND_MODE_802_3AD) }) &&
			t.Run("balance-xor", func(t *testing.T) { aggregate(t, netlink.BOND_MODE_BALANCE_XOR) }) &&
			t.Run("uppers", uppers)
		return
	}
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	qemu.Need(t)
	t.Setenv("CGO_ENABLED", "0") // programs for the guest are static
	daemon, remove, err := lab.BuildDaemon()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if initramfs.CheckStatic(program) != nil {
		program = filepath.Join(t.TempDir(), "test")
		if out, err := exec.Command("go", "test", "-c", "-o", program, ".").CombinedOutput(); err != nil {
			t.Fatalf("building this test for the guest: %v\n%s", err, out)
		}
	}
	var out strings.Builder
	err = qemu.Run(t.Context(), qemu.Machine{
		Modules: modules,
		Files:   map[string]string{"/bin/test": program, "/bin/tapswitchd": daemon},
		Env:     []string{insideEnv + "=1", lab.DaemonEnv + "=/bin/tapswitchd"},
		Log:     os.Stderr,
	}, qemu.Command{Args: []string{"/bin/test", "-test.v", "-test.run", "^TestUplinks$"}, Stdout: &out, Stderr: &out})
	t.Logf("in the guest:\n%s", &out)
	if err != nil {
		t.Error(err)
	}
}
