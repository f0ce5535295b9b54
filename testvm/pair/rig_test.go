package pair

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/guestbpf"
	"github.com/tapswitch/tapswitch/testvm/initramfs"
	"github.com/tapswitch/tapswitch/testvm/kernel"
	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/testvm/qemu"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// bound is how long what takes milliseconds may: the guest's CPUs are emulated.
const bound = 60 * time.Second

// What the lab does not have: a second bridge, with an uplink and a station of its own.
const (
	farBridge, farNIC, farDev = "br1", "nic1", "far0"

	daemonConfig = `uplinks = ["nic0", "nic1"]
xdp = "always"`
)

// The guest's NICs: two with one pair of queues, and two with as many as two CPUs and
// native XDP take. The first of each two is on the lab's bridge.
const (
	cpus   = 2
	many   = 2 * cpus
	offset = 2 // of the first NIC with many queues
)

// A rig is a host with a daemon and two bridges, a station outside each, and a guest
// with two NICs on either.
type rig struct {
	*testing.T
	*lab.Lab
	far    *lab.Node
	daemon *lab.Daemon
	api    *control.Client
	guest  *qemu.Guest
	out    map[string]*lab.Packet // the stations', by the uplink's name
}

func guestMAC(i int) net.HardwareAddr { return net.HardwareAddr{0x52, 0x54, 0, 0, 2, byte(i)} }

var farMAC = net.HardwareAddr{2, 0, 0, 0, 3, 1}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), bound)
	r.Cleanup(cancel)
	return ctx
}

// eventually waits for what makes no event.
func (r *rig) eventually(what string, ready func() bool) {
	r.Helper()
	ctx := r.within()
	for !ready() {
		select {
		case <-ctx.Done():
			r.Fatalf("waited %v until %s\n%s", bound, what, r.daemon.Log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// newRig boots a guest with a kernel, and has its taps and the uplinks on the fast path.
func newRig(t *testing.T, name string) *rig {
	r := &rig{T: t, out: map[string]*lab.Packet{}}
	var err error
	r.Lab, err = lab.New(lab.Options{NoHostAddr: true})
	r.must(err)
	t.Cleanup(func() { r.Close() })
	r.makeFar()
	for nic, end := range map[string]struct {
		node *lab.Node
		dev  string
	}{lab.NIC: {r.Wire, lab.WireDev}, farNIC: {r.far, farDev}} {
		p, err := lab.OpenPacket(end.node, end.dev)
		r.must(err)
		t.Cleanup(func() { p.Close() })
		p.Keep(ours)
		r.out[nic] = p
	}
	r.boot(name)
	for i := range 2 * offset {
		r.plug(tap(i), bridgeOf(i))
	}

	program, remove, err := lab.BuildDaemon()
	r.must(err)
	t.Cleanup(remove)
	r.daemon, err = r.Host.StartDaemon(r.within(), lab.DaemonOptions{Path: program, Config: daemonConfig})
	r.must(err)
	t.Cleanup(func() {
		if err := r.daemon.Stop(); err != nil {
			t.Error(err)
		}
	})
	r.api = control.Dial(r.daemon.Socket)
	t.Cleanup(r.api.Close)
	return r
}

func tap(i int) string { return fmt.Sprintf("vnet%d", i) }

func bridgeOf(i int) string {
	if i%2 == 0 {
		return lab.BridgeDev
	}
	return farBridge
}

func (r *rig) makeFar() {
	var err error
	r.far, err = lab.NewNode("far")
	r.must(err)
	r.Cleanup(func() { r.far.Close() })
	for _, n := range []*lab.Node{r.Host, r.Wire, r.far} {
		for _, conf := range []string{"all", "default"} { // no frames but the test's
			if err := n.SetSysctl("net/ipv6/conf/"+conf+"/disable_ipv6", "1"); !errors.Is(err, os.ErrNotExist) {
				r.must(err)
			}
		}
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: farDev, HardwareAddr: farMAC},
		PeerName:  farNIC, PeerNamespace: netlink.NsFd(r.Host.NetNS()),
	}
	r.must(r.far.Netlink().LinkAdd(veth))
	r.must(r.far.SetUp(farDev))
	r.must(r.Host.SetOffload(farNIC, lab.RxVLAN, false))
	r.must(r.Host.Netlink().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: farBridge}}))
	r.must(r.Host.SetForwardDelay(farBridge, 0))
	r.must(r.Host.SetUp(farBridge))
	r.plug(farNIC, farBridge)
}

// plug makes a device a port of a bridge and brings it up.
func (r *rig) plug(dev, bridge string) {
	r.Helper()
	d, err := r.Host.Link(dev)
	r.must(err)
	b, err := r.Host.Link(bridge)
	r.must(err)
	r.must(r.Host.Netlink().LinkSetMaster(d, b))
	r.must(r.Host.SetUp(dev))
}

// boot starts the guest. QEMU makes its taps in the host.
func (r *rig) boot(name string) {
	program := filepath.Join(r.TempDir(), "tapswitch-guest")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "../../cmd/tapswitch-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		r.Fatalf("building tapswitch-guest: %v\n%s", err, out)
	}
	files := map[string]string{"/bin/tapswitch-guest": program, ruleFile: r.file(ruleText)}
	r.must(initramfs.AddTool(files, "ip"))
	m := qemu.Machine{
		Kernel: name, Cache: &kernel.Cache{Log: os.Stderr}, CPUs: cpus, Files: files,
		Timeout: 10 * time.Minute, Spawn: r.Host.Start,
	}
	for i := range 2 * offset {
		n := qemu.NIC{Tap: tap(i), MAC: guestMAC(i).String()}
		if i >= offset {
			n.Queues = many
		}
		m.NICs = append(m.NICs, n)
	}
	var err error
	r.guest, err = m.Start(context.WithoutCancel(r.Context())) // it ends after the test
	r.must(err)
	r.Cleanup(func() {
		if err := r.guest.Stop(); err != nil {
			r.Error(err)
		}
	})
	for i := range m.NICs {
		r.inside("ip", "link", "set", eth(i), "addrgenmode", "none")
		r.inside("ip", "link", "set", eth(i), "up")
	}
}

func eth(i int) string { return fmt.Sprintf("eth%d", i) }

func (r *rig) file(text string) string {
	path := filepath.Join(r.TempDir(), "file")
	r.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// try runs a command in the guest and gives what it wrote.
func (r *rig) try(args ...string) (string, error) {
	var out, errs bytes.Buffer
	err := r.guest.Run(r.within(), qemu.Command{Args: args, Stdout: &out, Stderr: &errs})
	if err != nil {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), err
}

func (r *rig) inside(args ...string) string {
	r.Helper()
	out, err := r.try(args...)
	r.must(err)
	return out
}

// counted gives the guest's verdicts for a device.
func (r *rig) counted(dev string) map[string]uint64 {
	r.Helper()
	var list []guestbpf.Attachment
	r.must(json.Unmarshal([]byte(r.inside("/bin/tapswitch-guest", "stats", "--json")), &list))
	verdicts := map[string]uint64{}
	for _, a := range list {
		if a.Device != dev {
			continue
		}
		for _, v := range a.Verdicts {
			if v.Frames > 0 {
				verdicts[v.Verdict] = v.Frames
			}
		}
	}
	return verdicts
}

// place tells a bridge where an address is.
func (r *rig) place(port string, mac net.HardwareAddr) {
	r.Helper()
	index, err := r.Host.Ifindex(port)
	r.must(err)
	r.must(r.Host.Netlink().NeighSet(&netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: mac,
	}))
	r.eventually(fmt.Sprintf("%v is on the fast path to %s", mac, port), func() bool {
		entries, err := r.api.FDB(r.Context(), control.FDBFilter{Port: port})
		r.must(err)
		for _, e := range entries {
			if e.Fast && bytes.Equal(e.MAC[:], mac) {
				return true
			}
		}
		return false
	})
}

// redirected counts the frames from a port that its first hook redirected.
func (r *rig) redirected(port string) uint64 {
	r.Helper()
	stats, err := r.api.Stats(r.Context())
	r.must(err)
	for _, s := range stats {
		if s.Port != port {
			continue
		}
		for _, c := range s.Verdicts {
			if c.Verdict == vswitch.Redirected {
				return c.Frames
			}
		}
	}
	return 0
}

// lost counts what vanished behind a verdict.
func (r *rig) lost() (n uint64) {
	r.Helper()
	drops, err := r.api.Drops(r.Context())
	r.must(err)
	for _, d := range drops {
		n += d.Frames
	}
	return n
}
