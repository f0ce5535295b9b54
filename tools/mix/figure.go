package mix

// A Figure names something that is measured; the names are those of the JSON.
type Figure string

// The figures. A load has only some of them.
const (
	Goodput     Figure = "mbit_per_s"     // TCP payload that arrived, in 10⁶ bit/s
	Rate        Figure = "transactions_s" // requests answered per second
	P50         Figure = "p50_us"         // from request to answer, microseconds
	P99         Figure = "p99_us"
	Offered     Figure = "offered_s"   // UDP datagrams sent per second: less than wanted if the sender has too little CPU
	Datagrams   Figure = "datagrams_s" // UDP datagrams that arrived per second
	Loss        Figure = "loss"        // fraction of the UDP datagrams sent
	HostPerKB   Figure = "host_ns_per_kb"
	HostPerIn   Figure = "host_ns_per_frame" // per frame, merged or not, that came in by a port of the host
	HostCPUs    Figure = "host_cpus"         // CPU time of the host per second
	EndsCPUs    Figure = "ends_cpus"         // the same of stations and relays
	OtherCPUs   Figure = "other_cpus"        // the same of all else on the machine, the daemon included
	FrameOut    Figure = "bytes_per_frame_out"
	Retransmits Figure = "retransmits" // TCP segments sent again, by all stations
	OutOfOrder  Figure = "out_of_order"
	DSACKs      Figure = "dsacks" // reports of segments that had come already
)

// Figures are what one measurement gave.
type Figures map[Figure]float64
