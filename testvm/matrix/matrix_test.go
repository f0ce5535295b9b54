package matrix

import (
	"crypto/sha256"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// daemonPath is the tapswitchd that the tests run.
var daemonPath string

type testMain struct{ m *testing.M }

// Run builds the daemon first, so that the tests run the same tree's.
func (t testMain) Run() int {
	dir, err := os.MkdirTemp("", "tapswitchd")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	daemonPath = filepath.Join(dir, "tapswitchd")
	build := exec.Command("go", "build", "-o", daemonPath, "github.com/tapswitch/tapswitch/cmd/tapswitchd")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	return t.m.Run()
}

func TestMain(m *testing.M) { lab.Main(testMain{m}) }

// A way is between two ports.
type way struct{ from, to string }

func (w way) String() string {
	name := map[string]string{sender: "tap", receiver: "tap", wire: "uplink"}
	return name[w.from] + "→" + name[w.to]
}

var ways = []way{{sender, receiver}, {sender, wire}, {wire, receiver}}

// impossible says why there is no such cell.
func (k traffic) impossible(h *host, m mode, w way) string {
	switch {
	case k.tunnel && k.segment != 0 && w.from == sender && !h.tunnels:
		return "taps that take segmentation inside tunnels need Linux 6.17"
	case m == xdp && w.from == sender && k.partial:
		return "a promoted guest sends complete frames alone (see TestWronglyPromoted)"
	}
	return ""
}

const (
	framesPerCell = 5
	mtu           = 1500
)

func TestChecksumsAndOffloads(t *testing.T) {
	for _, offloads := range []bool{true, false} {
		name := map[bool]string{true: "into offloads", false: "into none"}[offloads]
		t.Run(name, func(t *testing.T) {
			byBridge := map[string][]frame{}
			for _, m := range []mode{plain, tcx, xdp} {
				t.Run(string(m), func(t *testing.T) {
					h := newHost(t, m, offloads, mtu, nil)
					if m != plain {
						h.checkFast(t, m)
					}
					for _, w := range ways {
						for i, k := range kinds {
							k.port = uint16(5100 + i)
							cell := w.String() + "/" + k.name
							t.Run(cell, func(t *testing.T) {
								if reason := k.impossible(h, m, w); reason != "" {
									t.Skip("no such cell: " + reason)
								}
								got := h.cell(t, m, w, k, offloads)
								switch {
								case m == plain:
									byBridge[cell] = got
								case m == tcx && !(k.tunnel && w.from == wire): // whose outer headers have random numbers
									if !slices.EqualFunc(byBridge[cell], got, frame.equal) {
										t.Errorf("got %x, and by the bridge %x", got, byBridge[cell])
									}
								}
							})
						}
					}
				})
			}
		})
	}
}

// cell sends frames by one way, checks what comes out, and that all of them were
// counted.
func (h *host) cell(t *testing.T, m mode, w way, k traffic, offloads bool) []frame {
	t.Helper()
	if m == plain {
		got, _ := h.send(t, w, k, offloads)
		return got
	}
	before := h.counts(t, w.from)
	got, sent := h.send(t, w, k, offloads)
	now := h.counts(t, w.from)
	first, merged := since(now.first, before.first), since(now.merged, before.merged)
	want := map[vswitch.Verdict]uint64{vswitch.Redirected: uint64(sent)}
	switch {
	case m == xdp && w.from == sender && k.tunnel: // there might be anything inside
		want = map[vswitch.Verdict]uint64{vswitch.PassPartial: uint64(sent)}
	case m == xdp && w.to == wire: // NICs are no targets of XDP
		want = map[vswitch.Verdict]uint64{vswitch.PassNoDevice: uint64(sent)}
	case m == xdp && w.from == wire && offloads && k.segment >= bulkFrame && !k.udp && !k.tunnel:
		// The last segment, which is short, follows its flow. A guest that takes nothing
		// merged gets all by XDP.
		want = map[vswitch.Verdict]uint64{vswitch.PassBulk: uint64(sent)}
	}
	delete(first, vswitch.PassGroup) // the stations' stacks' own, like reports of groups
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("%d frames went in; verdicts (-want +got):\n%s", sent, diff)
	}
	for v, n := range merged {
		if v != vswitch.Redirected {
			t.Errorf("%d frames that XDP passed met the verdict %s", n, v)
		}
	}
	h.checkDrops(t)
	return got
}

// bulkFrame is the daemon's default for the length of a frame that makes a TCP
// flow bulk.
const bulkFrame = 1024

// send sends frames by one way, and checks what comes out. sent is how many frames
// the port got.
func (h *host) send(t *testing.T, w way, k traffic, offloads bool) (got []frame, sent int) {
	t.Helper()
	var (
		in           = h.ends[w.from]
		frames, want = k.frames(stations[w.from], stations[w.to], framesPerCell)
	)
	if k.tunnel && w.from == wire { // the device makes the outer headers
		in = h.tunnel[k.outer6]
		inner := k
		inner.tunnel = false
		frames, want = inner.frames(stations[w.from], stations[w.to], framesPerCell)
	}
	for _, f := range frames {
		if err := in.send(f); err != nil {
			t.Fatal(err)
		}
	}
	got = h.collect(t, w, k, len(want))
	for _, f := range got {
		if len(f.data) > h.mtu+ethernetLen && f.header[offGSOType] == 0 {
			t.Fatalf("a frame of %d bytes came out whole", len(f.data))
		}
		if !offloads && (f.header[offGSOType] != 0 || f.header[offFlags]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0) {
			t.Fatalf("the receiver takes no offloads, and was left %x", f.header)
		}
	}
	compare(t, k, got, want)
	if w.from == wire && h.wireCuts {
		return got, len(want)
	}
	return got, len(frames)
}

// collect waits until n packets have come out of a port, and gives the frames.
func (h *host) collect(t *testing.T, w way, k traffic, n int) (got []frame) {
	t.Helper()
	timeout := time.After(patience)
	for packets := 0; packets < n; {
		select {
		case f := <-h.arrivals(w.to):
			p, err := f.check()
			if errors.Is(err, errOther) || err == nil && p[0].port != k.port {
				continue
			}
			if err != nil {
				t.Fatalf("%v in a frame of %d bytes with header %x", err, len(f.data), f.header)
			}
			packets += len(p)
			got = append(got, f)
		case <-timeout:
			t.Fatalf("%d of %d packets came out", packets, n)
		}
	}
	return got
}

// compare says where what came out differs from what went in.
func compare(t *testing.T, k traffic, got []frame, want [][]byte) {
	t.Helper()
	var pieces []piece
	for _, f := range got {
		p, _ := f.check()
		pieces = append(pieces, p...)
	}
	if len(pieces) != len(want) {
		t.Fatalf("%d packets came out, want %d", len(pieces), len(want))
	}
	if !k.udp { // in the order of the stream
		first := uint32(0xffffe000)
		slices.SortStableFunc(pieces, func(a, b piece) int { return int(a.seq-first) - int(b.seq-first) })
		next := first
		for _, p := range pieces {
			if p.seq != next {
				t.Fatalf("a segment begins at %d, want %d", p.seq, next)
			}
			next += uint32(len(p.payload))
		}
	}
	in, out := sha256.New(), sha256.New()
	for i, p := range pieces {
		in.Write(want[i])
		out.Write(p.payload)
		if len(p.payload) != len(want[i]) {
			t.Errorf("packet %d carries %d bytes, want %d", i, len(p.payload), len(want[i]))
		}
	}
	if string(in.Sum(nil)) != string(out.Sum(nil)) {
		t.Errorf("the payload is not what was sent")
	}
}

// checkDrops gives an error if frames were lost after their verdict.
func (h *host) checkDrops(t *testing.T) {
	t.Helper()
	drops, err := h.api.Drops(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range drops {
		t.Errorf("%d frames to %s were lost: %s", d.Frames, d.Port, d.Reason)
	}
}

// TestWronglyPromoted names a guest as one that sends complete frames, which does
// not: no frame may come out wrong, and the guest loses XDP.
func TestWronglyPromoted(t *testing.T) {
	for _, offloads := range []bool{true, false} {
		t.Run(map[bool]string{true: "into offloads", false: "into none"}[offloads], func(t *testing.T) {
			h := newHost(t, xdp, offloads, mtu, nil)
			for _, w := range ways[:2] {
				for i, k := range kinds {
					k.port = uint16(5100 + i)
					if k.impossible(h, tcx, w) == "" {
						t.Run(w.String()+"/"+k.name, func(t *testing.T) { h.send(t, w, k, offloads) })
					}
				}
			}
			h.checkDrops(t)
			h.awaitPort(t, sender, func(p control.Port) bool { return p.Hook == "tcx" && p.State == control.StateFast })
			if p := h.port(t, sender); len(p.Held) != 1 || p.Held[0].Code != vswitch.HoldNoXDP {
				t.Errorf("%s is held for %v, want for its checksums", p.Name, p.Held)
			}
		})
	}
}

// TestVethMayLeaveChecksums takes a veth as uplink that nobody has said anything
// of: frames that come by it may lack their checksums.
func TestVethMayLeaveChecksums(t *testing.T) {
	h := newHost(t, tcx, false, mtu, nil)
	if p := h.port(t, wire); p.Hook != "tcx" || len(p.Held) != 1 || p.Held[0].Code != vswitch.HoldNoXDP {
		t.Errorf("%s is attached by %q and held for %v, want by tcx for its checksums", p.Name, p.Hook, p.Held)
	}
}
