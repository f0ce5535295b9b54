package control

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tapswitch/tapswitch/vswitch"
)

// scrapeTimeout is below Prometheus' own default of 10 s.
const scrapeTimeout = 5 * time.Second

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tapswitch_"+name, help, labels, nil)
}

// The ifindex is a label because names come back with other devices.
var (
	infoDesc     = desc("info", "Always 1; the labels tell the daemon's version and the kernel's.", "version", "kernel")
	startDesc    = desc("start_timestamp_seconds", "When the daemon started, in seconds since 1970.")
	deadlineDesc = desc("deadline_timestamp_seconds", "When the datapath stops acting unless the daemon renews its lease, in seconds since 1970.")
	adoptedDesc  = desc("datapath_adopted", "1 if the daemon took over the datapath of an earlier one.")

	bulkDesc          = desc("bulk_flows", "TCP flows that take the way after GRO now.")
	framesDesc        = desc("frames_total", "Frames that came in by a port, by what the datapath did with them.", "port", "ifindex", "bridge", "role", "verdict")
	mergedDesc        = desc("merged_frames_total", "Frames, merged by GRO, that came to a port's tc hook after its XDP hook had passed them, by what became of them.", "port", "ifindex", "bridge", "role", "verdict")
	flushesDesc       = desc("flushes_total", "How often the kernel handed redirected frames to a port.", "port", "ifindex", "bridge", "role")
	flushedFramesDesc = desc("flushed_frames_total", "Redirected frames that the kernel handed to a port.", "port", "ifindex", "bridge", "role")
	lostDesc          = desc("lost_frames_total", "Frames lost after the datapath had sent them to a port.", "port", "ifindex", "reason")

	sharedDesc = desc("egress_dropped_frames_total", "Frames of the datapath's tc hooks or the bridge that a port's qdisc or device dropped, since the daemon knows the port.", "port", "ifindex", "reason")

	portsDesc = desc("ports", "Ports by state.", "bridge", "role", "state")
	holdsDesc = desc("port_holds", "Reasons of a kind that hold a port back.", "port", "ifindex", "bridge", "role", "code")

	entriesDesc  = desc("fdb_entries", "Forwarding entries of a bridge in the datapath.", "bridge")
	capacityDesc = desc("fdb_capacity_entries", "Forwarding entries that the datapath has room for.")
	refusedDesc  = desc("fdb_refused_total", "How often a port had a new address beyond its limit.")
	fullDesc     = desc("fdb_unplaced_entries", "Forwarding entries for which the datapath had no room.")
)

// A collector reads the source anew at each scrape.
type collector struct{ source Source }

// NewCollector makes a Prometheus collector of the source's counters and states.
func NewCollector(src Source) prometheus.Collector { return collector{src} }

// NewRegistry makes a registry with NewCollector's metrics, and those of the
// process and its Go runtime.
func NewRegistry(src Source) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		NewCollector(src),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}

// NewMetricsHandler answers scrapes. What can't be read fails the scrape as a
// whole, because a metric that is missing looks like one that is well.
func NewMetricsHandler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: 2})
}

// Describe sends the descriptions of all metrics.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		infoDesc, startDesc, deadlineDesc, adoptedDesc,
		bulkDesc, framesDesc, mergedDesc, flushesDesc, flushedFramesDesc, lostDesc, sharedDesc,
		portsDesc, holdsDesc,
		entriesDesc, capacityDesc, fullDesc, refusedDesc,
	} {
		ch <- d
	}
}

// Collect reads the source and sends what it holds.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	m := metrics(ch)
	if s, err := c.source.Status(ctx); err != nil {
		ch <- prometheus.NewInvalidMetric(infoDesc, err)
	} else {
		m.status(s)
	}
	if s, err := c.source.Stats(ctx); err != nil {
		ch <- prometheus.NewInvalidMetric(framesDesc, err)
	} else {
		m.stats(s)
	}
	if d, err := c.source.Drops(ctx); err != nil {
		ch <- prometheus.NewInvalidMetric(lostDesc, err)
	} else {
		m.drops(d)
	}
	if p, err := c.source.Ports(ctx); err != nil {
		ch <- prometheus.NewInvalidMetric(portsDesc, err)
	} else {
		m.ports(p)
	}
}

// metrics is where a scrape's metrics go.
type metrics chan<- prometheus.Metric

func (m metrics) gauge(d *prometheus.Desc, v float64, labels ...string) {
	m.send(d, prometheus.GaugeValue, v, labels)
}

func (m metrics) counter(d *prometheus.Desc, v uint64, labels ...string) {
	m.send(d, prometheus.CounterValue, float64(v), labels)
}

func (m metrics) send(d *prometheus.Desc, t prometheus.ValueType, v float64, labels []string) {
	for i, l := range labels {
		// The kernel takes any bytes as a device's name, Prometheus does not.
		labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	m <- prometheus.MustNewConstMetric(d, t, v, labels...)
}

func (m metrics) status(s Status) {
	m.gauge(infoDesc, 1, s.Version, s.Kernel)
	m.gauge(startDesc, unixSeconds(s.Started))
	m.gauge(deadlineDesc, unixSeconds(s.Deadline()))
	adopted := 0.0
	if s.Datapath.Adopted {
		adopted = 1
	}
	m.gauge(adoptedDesc, adopted)
	for _, b := range s.Bridges {
		m.gauge(entriesDesc, float64(b.FDBEntries), b.Name)
	}
	m.gauge(capacityDesc, float64(s.FDB.Capacity))
	m.gauge(fullDesc, float64(s.FDB.Full))
	m.counter(refusedDesc, s.FDB.Refused)
	m.gauge(bulkDesc, float64(s.Datapath.BulkFlows))
}

func (m metrics) stats(stats []Stats) {
	for _, s := range stats {
		port := []string{s.Port, strconv.Itoa(s.Ifindex), s.Bridge, s.Role.String()}
		for _, v := range s.Verdicts {
			m.counter(framesDesc, v.Frames, append(port, v.Verdict.String())...)
		}
		for _, v := range s.Merged {
			m.counter(mergedDesc, v.Frames, append(port, v.Verdict.String())...)
		}
		if s.Ifindex == 0 {
			continue // nothing leaves by no port
		}
		m.counter(flushesDesc, s.Flushes, port...)
		m.counter(flushedFramesDesc, s.FlushedFrames, port...)
	}
}

func (m metrics) drops(drops []Drop) {
	for _, d := range drops {
		if d.Shared {
			m.counter(sharedDesc, d.Frames, d.Port, strconv.Itoa(d.Ifindex), d.Reason)
			continue
		}
		m.counter(lostDesc, d.Frames, d.Port, strconv.Itoa(d.Ifindex), d.Reason)
	}
}

func (m metrics) ports(ports []Port) {
	type group struct {
		bridge string
		role   vswitch.Role
	}
	states := map[group]map[string]int{}
	for _, p := range ports {
		g := group{p.Bridge, p.Role}
		if states[g] == nil {
			// All of them, so that the last port's leaving a state is a 0.
			states[g] = map[string]int{StateFast: 0, StateFastIn: 0, StateFastOut: 0, StateHeld: 0}
		}
		states[g][p.State]++
		holds := map[vswitch.HoldCode]int{}
		for _, h := range p.Held {
			holds[h.Code]++
		}
		for code, n := range holds {
			m.gauge(holdsDesc, float64(n), p.Name, strconv.Itoa(p.Ifindex), p.Bridge, p.Role.String(), string(code))
		}
	}
	for g, byState := range states {
		for state, n := range byState {
			m.gauge(portsDesc, float64(n), g.bridge, g.role.String(), state)
		}
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
