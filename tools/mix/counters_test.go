package mix

import (
	"bufio"
	"strings"
	"testing"
	"time"
)

func TestParseCounters(t *testing.T) {
	const text = `Tcp: RtoMin MaxConn RetransSegs
Tcp: 200 -1 7
TcpExt: SyncookiesSent TCPOFOQueue
TcpExt: 0 18446744073709551
`
	c := tcpCounters{}
	if err := c.parse(bufio.NewScanner(strings.NewReader(text))); err != nil {
		t.Fatal(err)
	}
	if c[retransSegs] != 7 || c[ofoQueue] != 18446744073709551 {
		t.Errorf("the counters are %v", c)
	}
	if n := c.since(tcpCounters{retransSegs: 5}, retransSegs, "Tcp.RtoMin"); n != 202 {
		t.Errorf("the counters grew by %d, want 202", n)
	}
	for _, bad := range []string{"Tcp: A B\nTcp: 1\n", "Tcp: A\nTcp: x\n"} {
		if err := c.parse(bufio.NewScanner(strings.NewReader(bad))); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}

func TestParseBusy(t *testing.T) {
	// 100 + 0 + 50 + 1 + 2 + 47 ticks; idle, iowait and guests' don't count.
	if d, err := parseBusy("cpu  100 0 50 9999 888 1 2 47 70 0"); err != nil || d != 2*time.Second {
		t.Errorf("the CPUs were busy for %v, %v, want 2 s", d, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "cpu0 1 2 3 4 5 6 7 8", "cpu a 2 3 4 5 6 7 8"} {
		if _, err := parseBusy(bad); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}
