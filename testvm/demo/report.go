package demo

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A Report is what a run has seen. Its parts stand in the order in which a person
// would ask; those that a run did not come to are empty.
type Report struct {
	// OK says that the run came to its end and that all its checks are ok.
	OK bool `json:"ok"`
	// Failures are the names of the checks that are not ok.
	Failures []string `json:"failures"`
	// Error is what ended the run early, if anything did.
	Error string `json:"error"`

	Kernel  string  `json:"kernel"`
	CPUs    int     `json:"cpus"`
	Daemon  string  `json:"daemon_version"`
	Elapsed float64 `json:"elapsed_s"`

	Ports     []Port     `json:"ports"`
	Reach     []Reach    `json:"reachability"`
	Transfers []Transfer `json:"transfers"`
	Verdicts  []Verdict  `json:"verdicts"`
	Accounts  []Account  `json:"accounts"`
	Losses    []Loss     `json:"losses"`
	Handovers []Handover `json:"handovers"`
	Remains   []Remain   `json:"clean_stop"`
	Cost      *Cost      `json:"frame_cost"`
}

// A Check says of one thing whether it is as it should be.
type Check struct {
	Name string `json:"name"` // of the thing, unique in a report
	OK   bool   `json:"ok"`
	Seen string `json:"seen"` // in words
}

// checked makes every row that has a Check one of these.
func (c Check) checked() Check { return c }

func newReport() *Report {
	r := &Report{
		Failures: []string{}, CPUs: runtime.NumCPU(),
		Ports: []Port{}, Reach: []Reach{}, Transfers: []Transfer{}, Verdicts: []Verdict{}, Accounts: []Account{},
		Losses: []Loss{}, Handovers: []Handover{}, Remains: []Remain{},
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		r.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	return r
}

// Checks gives all checks.
func (r *Report) Checks() []Check {
	var all []Check
	all = appendChecks(all, r.Ports)
	all = appendChecks(all, r.Reach)
	all = appendChecks(all, r.Transfers)
	all = appendChecks(all, r.Accounts)
	all = appendChecks(all, r.Losses)
	all = appendChecks(all, r.Handovers)
	all = appendChecks(all, r.Remains)
	if r.Cost != nil {
		all = appendChecks(all, r.Cost.Ways)
	}
	return all
}

func appendChecks[T interface{ checked() Check }](all []Check, rows []T) []Check {
	for _, row := range rows {
		all = append(all, row.checked())
	}
	return all
}

// finish sums up.
func (r *Report) finish(elapsed time.Duration, err error) {
	r.Elapsed = elapsed.Seconds()
	if err != nil {
		r.Error = err.Error()
	}
	for _, c := range r.Checks() {
		if !c.OK {
			r.Failures = append(r.Failures, c.Name)
		}
	}
	r.OK = err == nil && len(r.Failures) == 0
}
