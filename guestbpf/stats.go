package guestbpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// An Attachment is what this package has attached to one device.
type Attachment struct {
	Device  string `json:"device"`
	Ifindex int    `json:"ifindex"`
	Mode    Mode   `json:"mode"`
	// CPUs are those that frames are spread over before they meet the mode's program.
	CPUs []int `json:"cpus,omitempty"`
	// Partners are the devices that frames are forwarded to.
	Partners []string `json:"partners,omitempty"`
	// Verdicts say what became of frames since the device was attached.
	Verdicts []VerdictCount `json:"verdicts"`
	// Rules are those of drop, counted since they were set.
	Rules []RuleCount `json:"rules,omitempty"`
}

// A Count is of frames.
type Count struct {
	Frames uint64 `json:"frames"`
	Bytes  uint64 `json:"bytes"` // from the destination address on, without FCS
}

// A VerdictCount is of frames that met one end.
type VerdictCount struct {
	Verdict string `json:"verdict"`
	Count
}

// A RuleCount is of frames for which one rule decided.
type RuleCount struct {
	Line int    `json:"line"`
	Rule string `json:"rule"`
	Count
}

// verdictNames are the verdicts by number.
var verdictNames = [guestVerdictNUM_VERDICTS]string{
	guestVerdictVERDICT_PASS:           "pass",
	guestVerdictVERDICT_DROP:           "drop",
	guestVerdictVERDICT_REFLECT:        "reflect",
	guestVerdictVERDICT_FORWARD:        "forward",
	guestVerdictVERDICT_PASS_GROUP:     "pass_group",
	guestVerdictVERDICT_PASS_TOO_LONG:  "pass_too_long",
	guestVerdictVERDICT_PASS_NO_DEVICE: "pass_no_device",
	guestVerdictVERDICT_PASS_SHORT:     "pass_short",

	guestVerdictVERDICT_PASS_NOT_ROUTED:   "pass_not_routed",
	guestVerdictVERDICT_PASS_MALFORMED:    "pass_malformed",
	guestVerdictVERDICT_PASS_TTL:          "pass_ttl",
	guestVerdictVERDICT_PASS_SOURCE:       "pass_source",
	guestVerdictVERDICT_PASS_NO_ROUTE:     "pass_no_route",
	guestVerdictVERDICT_PASS_NO_NEIGHBOUR: "pass_no_neighbour",
	guestVerdictVERDICT_PASS_REFRESH:      "pass_refresh",
	guestVerdictVERDICT_PASS_OFF:          "pass_off",
	guestVerdictVERDICT_PASS_EXPIRED:      "pass_expired",
	guestVerdictVERDICT_SPREAD:            "spread",
}

// List tells what is attached, and its counters.
func (g Guest) List() ([]Attachment, error) {
	found, err := pinned(g.pins())
	if err != nil {
		return nil, err
	}
	list := []Attachment{}
	for _, ifindex := range found {
		h, err := openHook(g.pins(), ifindex)
		if errors.Is(err, os.ErrNotExist) {
			continue // it goes, or its device has gone
		}
		if err != nil {
			return nil, err
		}
		a, err := h.look()
		h.close()
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

func (h *hook) look() (Attachment, error) {
	a := Attachment{Device: deviceName(h.ifindex), Ifindex: h.ifindex}
	for n, name := range verdictNames {
		c, err := readCount(h.counts, n)
		if err != nil {
			return a, err
		}
		a.Verdicts = append(a.Verdicts, VerdictCount{name, c})
	}
	p, mode, err := h.running()
	if err != nil || p == nil {
		return a, err
	}
	defer p.Close()
	a.Mode = mode
	if a.CPUs, err = h.spreadOver(); err != nil {
		return a, err
	}
	partners, err := h.partners()
	if err != nil {
		return a, err
	}
	for _, p := range partners {
		if p != h.ifindex {
			a.Partners = append(a.Partners, deviceName(p))
		}
	}
	slices.Sort(a.Partners)
	if mode == Drop {
		a.Rules, err = readRules(p)
	}
	return a, err
}

func readRules(p *ebpf.Program) ([]RuleCount, error) {
	all, err := runningMap(p, guestMapRules)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	counts, err := runningMap(p, guestMapRuleCounts)
	if err != nil {
		return nil, err
	}
	defer counts.Close()
	found := []RuleCount{}
	for n := range int(all.MaxEntries()) {
		var r guestRule
		if err := all.Lookup(uint32(n), &r); err != nil {
			return nil, fmt.Errorf("reading rule %d: %w", n, err)
		}
		if r.Line == 0 {
			break
		}
		c, err := readCount(counts, n)
		if err != nil {
			return nil, err
		}
		text, _, _ := strings.Cut(string(r.Text[:]), "\x00")
		found = append(found, RuleCount{int(r.Line), text, c})
	}
	return found, nil
}

// readCount gives the sum over the CPUs.
func readCount(m *ebpf.Map, n int) (Count, error) {
	var each []guestCount
	if err := m.Lookup(uint32(n), &each); err != nil {
		return Count{}, fmt.Errorf("reading counter %d of %s: %w", n, m, err)
	}
	var sum Count
	for _, c := range each {
		sum.Frames += c.Frames
		sum.Bytes += c.Bytes
	}
	return sum, nil
}
