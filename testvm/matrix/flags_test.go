package matrix

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// stranger is a station that the bridge does not know to begin with.
var stranger = net.HardwareAddr{0x52, 0x54, 0, 0, 0, 9}

// TestBridgeFeatures sends frames from one tap through a bridge that is set up in
// some way, and through one that is accelerated: both must come out at the same
// places, and by the verdict that the fast path should have for it.
func TestBridgeFeatures(t *testing.T) {
	const held = vswitch.PassHeld
	dynamic := func(mac net.HardwareAddr, port string) string {
		return fmt.Sprintf("bridge fdb replace %s dev %s master dynamic", mac, port)
	}
	from, to := stations[sender].mac, stations[receiver].mac
	for _, tt := range []struct {
		name     string
		setup    []string // commands, or attr=value of sender's port or of the bridge
		src, dst net.HardwareAddr
		out      []string // where the bridge sends it
		want     vswitch.Verdict
		held     string // what is shown as the reason
	}{
		{name: "nothing", out: []string{receiver}},
		{name: "from isolated", setup: []string{"bridge link set dev vnet0 isolated on"}, out: []string{receiver}},
		{name: "to isolated", setup: []string{"bridge link set dev vnet1 isolated on"}, out: []string{receiver}},
		{name: "from isolated to isolated", want: vswitch.PassIsolated,
			setup: []string{"bridge link set dev vnet0 isolated on", "bridge link set dev vnet1 isolated on"}},
		{name: "isolated to uplink", dst: stations[wire].mac, out: []string{wire},
			setup: []string{"bridge link set dev vnet0 isolated on", "bridge link set dev vnet1 isolated on"}},

		{name: "locked, static source", setup: []string{"bridge link set dev vnet0 locked on"}, out: []string{receiver}},
		{name: "locked, learned source", src: stranger, want: vswitch.PassLearn, out: []string{receiver},
			setup: []string{dynamic(stranger, sender), "bridge link set dev vnet0 locked on"}},
		{name: "locked, extern source", src: stranger, out: []string{receiver},
			setup: []string{"bridge fdb replace 52:54:00:00:00:09 dev vnet0 master extern_learn", "bridge link set dev vnet0 locked on"}},
		{name: "locked, unknown source", src: stranger, want: vswitch.PassLearn,
			setup: []string{"bridge link set dev vnet0 locked on"}},
		{name: "locked, source elsewhere", src: stranger, want: vswitch.PassLearn,
			setup: []string{dynamic(stranger, lab.NIC), "bridge link set dev vnet0 locked on"}},
		{name: "locked with MAB, unknown source", src: stranger, want: vswitch.PassLearn,
			setup: []string{"bridge link set dev vnet0 locked on", "mab"}},
		{name: "to locked, static", setup: []string{"bridge link set dev vnet1 locked on"}, out: []string{receiver}},
		{name: "to locked, learned", dst: stranger, want: vswitch.PassUnknown, out: []string{receiver},
			setup: []string{dynamic(stranger, receiver), "bridge link set dev vnet1 locked on"}},

		{name: "neigh_suppress", setup: []string{"bridge link set dev vnet0 neigh_suppress on"},
			out: []string{receiver}, want: held, held: "neigh_suppress"},
		{name: "backup port", setup: []string{"bridge link set dev vnet0 backup_port vnet1"},
			out: []string{receiver}, want: held, held: "backup_port"},
		{name: "VLAN tunnel", setup: []string{"bridge link set dev vnet0 vlan_tunnel on"},
			out: []string{receiver}, want: held, held: "vlan_tunnel"},

		{name: "hairpin", setup: []string{"bridge link set dev vnet0 hairpin on", dynamic(stranger, sender)}, dst: stranger,
			out: []string{sender}, want: vswitch.PassSamePort},
		{name: "no hairpin", setup: []string{dynamic(stranger, sender)}, dst: stranger, want: vswitch.PassSamePort},
		{name: "learning off, unknown source", setup: []string{"bridge link set dev vnet0 learning off"}, src: stranger,
			out: []string{receiver}, want: vswitch.PassLearn},
		{name: "flood off, unknown destination", dst: stranger, want: vswitch.PassUnknown,
			setup: []string{"bridge link set dev vnet1 flood off", "bridge link set dev nic0 flood off"}},

		{name: "learned destination", setup: []string{dynamic(stranger, receiver)}, dst: stranger, out: []string{receiver}},
		{name: "sticky destination", dst: stranger, out: []string{receiver},
			setup: []string{"bridge fdb replace 52:54:00:00:00:09 dev vnet1 master static sticky"}},
		{name: "sticky source elsewhere", src: stranger, out: []string{receiver}, want: vswitch.PassLearn,
			setup: []string{"bridge fdb replace 52:54:00:00:00:09 dev nic0 master static sticky"}},
		{name: "extern destination", dst: stranger, out: []string{receiver},
			setup: []string{"bridge fdb replace 52:54:00:00:00:09 dev vnet1 master extern_learn"}},
		{name: "local destination", dst: stranger, want: vswitch.PassUnknown,
			setup: []string{"bridge fdb replace 52:54:00:00:00:09 dev vnet1 master local"}},
		{name: "ageing time 0", setup: []string{"ip link set br0 type bridge ageing_time 0"}, out: []string{receiver}},
		{name: "ageing time 0, unknown source", setup: []string{"ip link set br0 type bridge ageing_time 0"}, src: stranger,
			out: []string{receiver}, want: vswitch.PassLearn},
		{name: "fdb_max_learned, unknown source", setup: []string{"max_learned"}, src: stranger,
			out: []string{receiver}, want: vswitch.PassLearn},

		{name: "state disabled", setup: []string{"bridge link set dev vnet0 state 0"}, want: held, held: "spanning tree"},
		{name: "state listening", setup: []string{"bridge link set dev vnet0 state 1"}, want: held, held: "spanning tree"},
		{name: "state learning", setup: []string{"bridge link set dev vnet0 state 2"}, want: held, held: "spanning tree"},
		// Without a spanning tree the kernel takes this one back.
		{name: "state blocking", setup: []string{"bridge link set dev vnet0 state 4"}, out: []string{receiver}},
		{name: "to state listening", setup: []string{"bridge link set dev vnet1 state 1"}, want: vswitch.PassEgressHeld},
		{name: "egress down", setup: []string{"ip link set vnet1 down"}, want: vswitch.PassEgressHeld},
		{name: "bridge down", setup: []string{"ip link set br0 down"}, want: held, held: "bridge br0 is down"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src, dst := tt.src, tt.dst
			if src == nil {
				src = from
			}
			if dst == nil {
				dst = to
			}
			for _, m := range []mode{plain, tcx} {
				h := newHost(t, m, false, mtu, func(h *host) error { return h.do(tt.setup) })
				var before counts
				if m == tcx {
					before = h.counts(t, sender)
					if p := h.port(t, sender); (tt.held != "") != (p.State == control.StateHeld) ||
						tt.held != "" && !strings.Contains(p.Held[0].Text, tt.held) {
						t.Errorf("%s is %s: %v", p.Name, p.State, p.Held)
					}
				}
				if out := h.pass(t, src, dst); !slices.Equal(out, tt.out) {
					t.Errorf("%s: it came out at %q, want %q", m, out, tt.out)
				}
				if m == plain {
					continue
				}
				got := since(h.counts(t, sender).first, before.first)
				if want := map[vswitch.Verdict]uint64{tt.want: 1}; !maps.Equal(got, want) {
					t.Errorf("its verdict is %v, want %v", got, want)
				}
			}
		})
	}
}

// do sets the host up.
func (h *host) do(commands []string) error {
	for _, c := range commands {
		var err error
		switch words := strings.Fields(c); c {
		case "mab": // which iproute2 knows since 6.3
			err = h.set(sender, "bridge_slave", unix.IFLA_BRPORT_MAB, []byte{1})
		case "max_learned":
			err = h.set(lab.BridgeDev, "bridge", unix.IFLA_BR_FDB_MAX_LEARNED, []byte{1, 0, 0, 0})
		default:
			var out []byte
			out, err = h.Host.Command(context.Background(), words[0], words[1:]...).CombinedOutput()
			err = errors.Join(err, errorOf(out))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

func errorOf(out []byte) error {
	if len(out) == 0 {
		return nil
	}
	return errors.New(string(out))
}

// set sets an attribute of a bridge or a port.
func (h *host) set(dev, kind string, attr int, value []byte) error {
	index, err := h.Host.Ifindex(dev)
	if err != nil {
		return err
	}
	infoKind, infoData := nl.IFLA_INFO_KIND, nl.IFLA_INFO_DATA
	if kind == "bridge_slave" {
		kind, infoKind, infoData = "bridge", nl.IFLA_INFO_SLAVE_KIND, nl.IFLA_INFO_SLAVE_DATA
	}
	return h.Host.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = int32(index)
		req.AddData(msg)
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(infoKind, nl.NonZeroTerminated(kind))
		info.AddRtAttr(infoData, nil).AddRtAttr(attr, value)
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}

// pass sends one frame into the sender's port, and says at which ports it came
// out. It is in a tap's queue when the write returns, and on its way over the wire
// before a frame that the same CPU sends behind it.
func (h *host) pass(t *testing.T, src, dst net.HardwareAddr) (out []string) {
	t.Helper()
	runtime.LockOSThread() // until the test's goroutine ends
	var one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	for cpu, found := 0, false; cpu < 1024; cpu++ {
		if found {
			one.Clear(cpu)
		}
		found = found || one.IsSet(cpu)
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	k := traffic{size: 100, udp: true, port: 5999}
	from, to := stations[sender], stations[receiver]
	from.mac, to.mac = src, dst
	frames, _ := k.frames(from, to, 1)
	if err := h.ends[sender].send(frames[0]); err != nil {
		t.Fatal(err)
	}
	came := func(port string, f frame) {
		if p, err := f.check(); err == nil && p[0].port == k.port {
			out = append(out, port)
		}
	}
	for _, port := range []string{receiver, sender} {
		for _, f := range h.ends[port].drain(t) {
			came(port, f)
		}
	}
	nic, err := openSocket(h.Host, lab.NIC)
	if err != nil {
		t.Fatal(err)
	}
	defer nic.file.Close()
	mark := k
	mark.port++
	frames, _ = mark.frames(from, to, 1)
	if err := nic.send(frames[0]); err != nil {
		t.Fatal(err)
	}
	timeout := time.After(patience)
	for {
		select {
		case f := <-h.arrivals(wire):
			if p, err := f.check(); err == nil && p[0].port == mark.port {
				slices.Sort(out)
				return out
			}
			came(wire, f)
		case <-timeout:
			t.Fatal("nothing comes out at the wire")
		}
	}
}
