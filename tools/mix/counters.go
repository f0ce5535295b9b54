package mix

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// tcpCounters are counters of a station's TCP, by their names in /proc/net/snmp and
// /proc/net/netstat.
type tcpCounters map[string]uint64

// The counters of interest. A receiver acknowledges each out-of-order segment with
// a duplicate acknowledgement (RFC 5681, 4.2), so TCPOFOQueue counts those too.
const (
	retransSegs  = "Tcp.RetransSegs"
	ofoQueue     = "TcpExt.TCPOFOQueue"     // received out of order
	dsackOldSent = "TcpExt.TCPDSACKOldSent" // received again
	dsackOfoSent = "TcpExt.TCPDSACKOfoSent"
	dsackRecv    = "TcpExt.TCPDSACKRecv"   // the peer had received again
	sackReorder  = "TcpExt.TCPSACKReorder" // the sender saw that its segments were reordered
	renoReorder  = "TcpExt.TCPRenoReorder"
	tsReorder    = "TcpExt.TCPTSReorder"
	fastRetrans  = "TcpExt.TCPFastRetrans"
)

// readTCP reads a station's counters.
func readTCP(n *lab.Node) (tcpCounters, error) {
	c := tcpCounters{}
	err := n.Do(func() error {
		for _, name := range []string{"snmp", "netstat"} {
			// /proc/net is that of the process's first thread.
			f, err := os.Open("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := c.parse(bufio.NewScanner(f)); err != nil {
				return fmt.Errorf("parsing %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the TCP counters of %s: %w", n.Name(), err)
	}
	return c, nil
}

// since gives by how much counters have grown, together.
func (c tcpCounters) since(before tcpCounters, names ...string) (n uint64) {
	for _, name := range names {
		n += c[name] - before[name]
	}
	return n
}

// readTCP reads the counters of the wire and the guests together.
func (h *host) readTCP() (tcpCounters, error) {
	sum := tcpCounters{}
	for _, n := range h.stations() {
		c, err := readTCP(n)
		if err != nil {
			return nil, err
		}
		for name, v := range c {
			sum[name] += v
		}
	}
	return sum, nil
}

// parse reads pairs of lines, the names and the values of one protocol's counters.
func (c tcpCounters) parse(s *bufio.Scanner) error {
	for s.Scan() {
		protocol, names, _ := strings.Cut(s.Text(), ": ")
		if !s.Scan() {
			break
		}
		_, values, _ := strings.Cut(s.Text(), ": ")
		list := strings.Fields(values)
		for i, name := range strings.Fields(names) {
			if i >= len(list) {
				return fmt.Errorf("%s has more names than values", protocol)
			}
			v, err := strconv.ParseInt(list[i], 10, 64)
			if err != nil {
				return fmt.Errorf("reading %s of %s: %w", name, protocol, err)
			}
			c[protocol+"."+name] = uint64(v)
		}
	}
	return s.Err()
}

// PortCounters sum up frames at the host's ports.
type portCounters struct {
	in, out, bytesOut uint64
}

// readPorts reads what the host's NIC and taps have counted. Frames that were
// merged count once.
func (h *host) readPorts() (c portCounters, err error) {
	links, err := h.Host.Netlink().LinkList()
	if err != nil {
		return c, fmt.Errorf("reading the host's counters: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if a.MasterIndex == 0 || a.Statistics == nil {
			continue
		}
		c.in += a.Statistics.RxPackets
		c.out += a.Statistics.TxPackets
		c.bytesOut += a.Statistics.TxBytes
	}
	return c, nil
}

// userHz is the unit of /proc/stat, which is the same on all machines that Go knows.
const userHz = 100

// readBusy gives the time that all CPUs have not been idle, counted by ticks.
func readBusy() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("reading the CPUs' time: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return parseBusy(line)
}

// parseBusy reads the line of all CPUs: user, nice, system, idle, iowait, irq,
// softirq, steal, and guests' time, which user and nice have in them.
func parseBusy(line string) (time.Duration, error) {
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("reading the CPUs' time: %q has no such fields", line)
	}
	var ticks int64
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading the CPUs' time: %w", err)
		}
		if i != 3 && i != 4 {
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / userHz, nil
}
