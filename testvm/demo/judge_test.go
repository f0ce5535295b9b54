package demo

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
	"github.com/tapswitch/tapswitch/tools/uplink"
	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// What a whole run sees is tested by the command; here, that nothing which is not
// as it should be passes for ok. want is a part of Seen, and empty for ok.
func checkSeen(t *testing.T, c Check, want string) {
	t.Helper()
	if c.OK != (want == "") || !strings.Contains(c.Seen, want) {
		t.Errorf("%s: ok is %v, seen %q; want %q in it", c.Name, c.OK, c.Seen, want)
	}
	if c.Name == "" || c.Seen == "" {
		t.Errorf("the check %+v does not tell what it is, or saw", c)
	}
}

func TestJudgePorts(t *testing.T) {
	held := control.Port{Name: "vnet0", State: control.StateHeld, Held: []vswitch.HoldReason{{Text: "somebody else's program"}}}
	rows := judgePorts([]string{"nic0", "vnet0", "vnet1"}, []control.Port{
		{Name: "nic0", State: control.StateFast, Hook: "xdp native + tcx"}, held,
	})
	for i, want := range []string{"", "somebody else's program", "does not serve"} {
		checkSeen(t, rows[i].Check, want)
	}
}

func TestJudgeReach(t *testing.T) {
	lost := errors.New("echo 3 of 20: i/o timeout")
	for _, tt := range []struct {
		name        string
		err4, err6  error
		behindPorts bool
		fast        uint64
		want        string
	}{
		{"all fast", nil, nil, true, 80, ""},
		{"host", nil, nil, false, 0, ""},
		{"IPv4 lost", lost, nil, true, 80, "echo 3 of 20"},
		{"IPv6 lost", nil, lost, true, 80, "echo 3 of 20"},
		{"slow", nil, nil, true, 79, "only 79 of 80 frames"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Reach{From: "wire", To: "guest0", Sent: 20, Fast: tt.fast}
			r.judge(tt.err4, tt.err6, tt.behindPorts)
			checkSeen(t, r.Check, tt.want)
			if r.IPv4 != (tt.err4 == nil) || r.IPv6 != (tt.err6 == nil) {
				t.Errorf("answered is %v and %v", r.IPv4, r.IPv6)
			}
		})
	}
}

func TestJudgeTransfer(t *testing.T) {
	rate := Rate{MbitPerSecond: 1}
	good := Transfer{Check: Check{Name: "a fetches"}, Bridge: rate, BridgeXDP: rate, Tapswitch: rate}
	good.judge()
	checkSeen(t, good.Check, "")
	bad := Transfer{Check: Check{Name: "a fetches", Seen: "another hash was sent"}, Bridge: rate, BridgeXDP: rate}
	bad.judge()
	checkSeen(t, bad.Check, "another hash was sent")
}

func TestJudgeAccounts(t *testing.T) {
	base := rxFrames{"nic0": {100, 103}} // three frames came while the port was attached
	for _, tt := range []struct {
		name    string
		decided uint64
		want    string
	}{
		{"all since the first look", 900, ""},
		{"all since the second look", 897, ""},
		{"one without a verdict", 896, "900 frames received, 896 verdicts"},
		{"one with two verdicts", 901, "900 frames received, 901 verdicts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			decided := counters{"nic0": {vswitch.Redirected: 800, vswitch.PassGroup: tt.decided - 800}}
			rows := judgeAccounts([]string{"nic0"}, base, rxFrames{"nic0": {1000, 1000}}, decided)
			checkSeen(t, rows[0].Check, tt.want)
		})
	}
}

func TestJudgeLoss(t *testing.T) {
	byXDP := func(reason string, n, byDevice uint64) lost {
		return lost{byXDP: map[string]uint64{reason: n}, byDevice: byDevice}
	}
	for _, tt := range []struct {
		name             string
		all, inTransfers lost
		want             string
	}{
		{"none", lost{}, lost{}, ""},
		{"TCP overran the ring", byXDP(ringFull, 10, 3), byXDP(ringFull, 10, 3), ""},
		{"TCP overran the device", lost{byDevice: 3}, lost{byDevice: 3}, ""},
		{"something else overran the ring too", byXDP(ringFull, 11, 3), byXDP(ringFull, 10, 3), "11 frames lost, 10 of them in transfers over TCP: ring full"},
		{"something else overran the device too", byXDP(ringFull, 10, 4), byXDP(ringFull, 10, 3), "10 frames lost"},
		{"in a transfer, but not for want of room", byXDP("device down", 1, 0), byXDP("device down", 1, 0), "device down"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkSeen(t, judgeLoss("vnet0", tt.all, tt.inTransfers).Check, tt.want)
		})
	}
}

func TestLost(t *testing.T) {
	drops := []control.Drop{
		control.NewDrop("vnet0", 3, 0, 16), control.NewDrop("vnet0", 3, 100, 2), control.NewDrop("vnet1", 4, 0, 5),
	}
	l := newLost("vnet0", 1, drops)
	if n := l.frames(); n != 18 {
		t.Errorf("%d frames lost, want 18", n)
	}
	if got, want := l.reasons(), []string{"device down", ringFull}; !slices.Equal(got, want) {
		t.Errorf("because of %q, want %q", got, want)
	}
	d := newLost("vnet0", 9, drops).since(l)
	if got, want := d.reasons(), []string{"dropped by the device"}; d.frames() != 8 || !slices.Equal(got, want) {
		t.Errorf("since then %d, because of %q; want 8, %q", d.frames(), got, want)
	}
}

func TestCountersSince(t *testing.T) {
	before := counters{"nic0": {vswitch.Redirected: 10, vswitch.PassHost: 3}}
	after := counters{"nic0": {vswitch.Redirected: 12, vswitch.PassHost: 1}, "vnet0": {vswitch.PassGroup: 5}}
	d := after.since(before)
	if fast, passed := d.split(); fast != 2 || passed != 6 {
		t.Errorf("%d frames by the fast path and %d by the bridge, want 2 and 6", fast, passed)
	}
	if n := d.sum("nic0"); n != 3 {
		t.Errorf("%d frames from nic0, want 3", n)
	}
}

func TestJudgeHandover(t *testing.T) {
	good := Handover{Check: Check{Name: "daemon killed"}, Want: "redirected", Away: 3000, AwayFrames: 3000, Adopted: true}
	for _, tt := range []struct {
		name   string
		change func(*Handover)
		report lab.StreamReport
		err    error
		want   string
	}{
		{"good", nil, lab.StreamReport{Sent: 9, Received: 9}, nil, ""},
		{"reordered", nil, lab.StreamReport{Sent: 9, Received: 9, Reordered: 1}, nil, ""},
		{"stopped cleanly", func(h *Handover) { *h = Handover{Check: h.Check} }, lab.StreamReport{Sent: 9}, nil, ""},
		{"lost", nil, lab.StreamReport{Sent: 9, Lost: 1}, nil, "of 9 datagrams 1 were lost"},
		{"twice", nil, lab.StreamReport{Sent: 9, Duplicated: 2}, nil, "2 came twice"},
		{"damaged", nil, lab.StreamReport{Sent: 9, Damaged: 3}, nil, "3 came damaged"},
		{"refused", nil, lab.StreamReport{Sent: 9, Refused: 4}, nil, "4 could not be sent"},
		{"not adopted", func(h *Handover) { h.Adopted = false }, lab.StreamReport{Sent: 9}, nil, "did not adopt"},
		{"another way", func(h *Handover) { h.AwayFrames = 2000 }, lab.StreamReport{Sent: 9}, nil, "only 2000 frames met the verdict redirected"},
		{"dried up", nil, lab.StreamReport{Sent: 9}, errDriedUp, "no longer arrive"},
		{"no daemon", nil, lab.StreamReport{Sent: 9}, errors.New("it ended\nout of order\n"), "it ended; out of order"},
		{"not fast", nil, lab.StreamReport{Sent: 9}, errNotFast, "still go by the bridge"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := good
			if tt.change != nil {
				tt.change(&h)
			}
			h.judge(tt.report, tt.err)
			checkSeen(t, h.Check, tt.want)
		})
	}
}

func TestJudgeRemains(t *testing.T) {
	before := remains{pins: 13, programs: 4, maps: 8, attached: 3}
	for _, tt := range []struct {
		name          string
		before, after remains
		want          []string
	}{
		{"nothing left", before, remains{}, []string{"", "", "", ""}},
		{"a program left", before, remains{programs: 1}, []string{"", "4 before the stop, 1 after it", "", ""}},
		{"nothing there", remains{}, remains{}, []string{"shows nothing", "shows nothing", "shows nothing", "shows nothing"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i, row := range judgeRemains(tt.before, tt.after) {
				checkSeen(t, row.Check, tt.want[i])
			}
		})
	}
}

func TestJudgeWay(t *testing.T) {
	for _, tt := range []struct {
		way  Way
		want string
	}{
		{Way{Way: uplink.Floor, Gross: 200}, ""},
		{Way{Way: uplink.Limit, Gross: 400, Ratio: 0.9}, ""},
		{Way{Way: uplink.Bridge, Gross: 1000, Ratio: 3}, ""},
		{Way{Way: uplink.Bridge, Gross: 1000, Ratio: 0.99}, "should be the cheaper one"},
		{Way{Way: uplink.BridgeDefault, Gross: 1000, Ratio: 1}, "should be the cheaper one"},
		{Way{Way: uplink.Tapswitch, Gross: 400, Ratio: 1, Loss: 0.01}, "1.00 % of the frames were lost"},
	} {
		tt.way.judge()
		checkSeen(t, tt.way.Check, tt.want)
	}
}

// Every row's check counts, and one that fails is named.
func TestReport(t *testing.T) {
	c := func(name string, ok bool) Check { return Check{Name: name, OK: ok} }
	r := newReport()
	r.Ports = []Port{{Check: c("port", true)}}
	r.Reach = []Reach{{Check: c("reach", true)}}
	r.Transfers = []Transfer{{Check: c("transfer", true)}}
	r.Accounts = []Account{{Check: c("account", true)}}
	r.Losses = []Loss{{Check: c("loss", false)}}
	r.Handovers = []Handover{{Check: c("handover", true)}}
	r.Remains = []Remain{{Check: c("remain", true)}}
	r.Cost = &Cost{Ways: []Way{{Check: c("way", false)}}}
	if n := len(r.Checks()); n != 8 {
		t.Errorf("%d checks, want 8", n)
	}
	r.finish(2*time.Second, nil)
	if r.OK || r.Elapsed != 2 || !slices.Equal(r.Failures, []string{"loss", "way"}) {
		t.Errorf("ok is %v, failures %v after %v s", r.OK, r.Failures, r.Elapsed)
	}

	early := newReport()
	early.finish(time.Second, errors.New("no daemon"))
	if early.OK || early.Error != "no daemon" {
		t.Errorf("a run that ended early is ok: %v, error %q", early.OK, early.Error)
	}
}
