package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/tapswitch/tapswitch/testvm/demo"
)

// printLab prints a report of the lab for people.
func (e *env) printLab(r *demo.Report) error {
	fmt.Fprintf(e.stdout, "Linux %s, %d CPUs, tapswitchd %s\n", r.Kernel, r.CPUs, cmp.Or(r.Daemon, "not started"))
	for _, section := range []struct {
		title  string
		tables []*table
	}{
		{"Ports of the bridge br0", []*table{portTable(r)}},
		{"Reachability: echoes over IPv4 and IPv6", []*table{reachTable(r)}},
		{"Transfers over TCP, hashed by both ends", []*table{transferTable(r)}},
		{"Verdicts: what became of the frames", []*table{verdictTable(r), accountTable(r), lossTable(r)}},
		{"Handovers: the daemon ends under 10000 datagrams per second", []*table{handoverTable(r)}},
		{"Clean stop: what is left behind", []*table{remainTable(r)}},
		{costTitle(r), []*table{costTable(r)}},
	} {
		begun := false
		for _, t := range section.tables {
			if len(t.rows) == 0 {
				continue
			}
			fmt.Fprintln(e.stdout)
			if !begun {
				fmt.Fprintln(e.stdout, section.title)
				begun = true
			}
			if err := t.print(e.stdout); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(e.stdout)
	if r.Cost != nil {
		for _, g := range r.Cost.Goals {
			fmt.Fprintln(e.stdout, g)
		}
		fmt.Fprintln(e.stdout)
	}
	_, err := fmt.Fprintln(e.stdout, verdictOn(r))
	return err
}

// verdictOn sums up in a line.
func verdictOn(r *demo.Report) string {
	all := len(r.Checks())
	switch {
	case len(r.Failures) > 0:
		return fmt.Sprintf("%d of %d checks FAILED: %s.", len(r.Failures), all, strings.Join(r.Failures, "; "))
	case r.Error != "":
		return fmt.Sprintf("The %d checks until here are ok, but the run ended early.", all)
	}
	return fmt.Sprintf("All %d checks are ok, in %.0f s.", all, r.Elapsed)
}

// addChecked adds a row that ends with how its check came out, and below it why
// if that is not well.
func (t *table) addChecked(c demo.Check, cells ...any) {
	result := "ok"
	if !c.OK {
		result = "FAILED"
	}
	t.add(append(cells, result)...)
	if !c.OK {
		t.note("%s", c.Seen)
	}
}

func portTable(r *demo.Report) *table {
	t := &table{columns: []column{left("PORT"), left("ROLE"), left("STATE"), left("HOOK"), left("RESULT")}}
	for _, p := range r.Ports {
		t.addChecked(p.Check, p.Port, p.Role, p.State, p.Hook)
	}
	return t
}

func reachTable(r *demo.Report) *table {
	t := &table{columns: []column{
		left("FROM"), left("TO"), right("ECHOES"), left("IPV4"), left("IPV6"), right("FAST FRAMES"), right("BRIDGE FRAMES"), left("RESULT"),
	}}
	answered := func(all bool) string {
		if all {
			return "all answered"
		}
		return "not answered"
	}
	for _, p := range r.Reach {
		t.addChecked(p.Check, p.From, p.To, fmt.Sprintf("2 × %d", p.Sent), answered(p.IPv4), answered(p.IPv6), p.Fast, p.Bridge)
	}
	return t
}

func transferTable(r *demo.Report) *table {
	t := &table{columns: []column{
		left("INTO"), left("FROM"), left("OVER"), right("MB"), left("SHA-256"),
		right("BRIDGE MBIT/S"), right("LOST"), right("WITH XDP MBIT/S"), right("LOST"), right("TAPSWITCH MBIT/S"), right("LOST"),
		left("RESULT"),
	}}
	slower := false
	for _, f := range r.Transfers {
		hash := "differs"
		if f.OK {
			hash = "equal"
		}
		cells := []any{f.Into, f.From, f.Family, f.Bytes / 1e6, hash}
		for _, rate := range []demo.Rate{f.Bridge, f.BridgeXDP, f.Tapswitch} {
			cells = append(cells, number(rate.MbitPerSecond), rate.Lost)
		}
		t.addChecked(f.Check, cells...)
		slower = slower || f.From == "wire" && f.Tapswitch.MbitPerSecond < clearlySlower*f.BridgeXDP.MbitPerSecond
	}
	if slower {
		t.note("Bulk TCP from the wire is slower by the fast path: XDP sends frames on one by one, before GRO can merge them.")
	}
	return t
}

// clearlySlower is what part of another rate is less by more than chance.
const clearlySlower = 0.8

// number prints a measured number; 0 is none.
func number(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", v)
}

func verdictTable(r *demo.Report) *table {
	t := &table{columns: []column{left("PORT"), left("VERDICT"), right("FRAMES"), left("MEANING")}}
	for _, v := range r.Verdicts {
		t.add(v.Port, v.Verdict, v.Frames, v.Meaning)
	}
	return t
}

func accountTable(r *demo.Report) *table {
	t := &table{columns: []column{left("FROM PORT"), right("RECEIVED FRAMES"), right("VERDICTS"), left("RESULT")}}
	for _, a := range r.Accounts {
		t.addChecked(a.Check, a.Port, a.Received, a.Decided)
	}
	return t
}

func lossTable(r *demo.Report) *table {
	t := &table{columns: []column{left("TO PORT"), right("LOST FRAMES"), right("IN TRANSFERS"), left("REASON"), left("RESULT")}}
	for _, l := range r.Losses {
		t.addChecked(l.Check, l.Port, l.Frames, l.InTransfers, cmp.Or(strings.Join(l.Reasons, ", "), "-"))
	}
	return t
}

func handoverTable(r *demo.Report) *table {
	t := &table{columns: []column{
		left("DAEMON"), right("SENT"), right("LOST"), right("TWICE"), left("ADOPTED"), right("MEANWHILE FRAMES"), left("VERDICT"), left("RESULT"),
	}}
	for _, h := range r.Handovers {
		adopted, meanwhile, verdict := "-", "-", "-"
		if h.Want != "" {
			adopted, meanwhile, verdict = "no", fmt.Sprint(h.AwayFrames), h.Want
			if h.Adopted {
				adopted = "yes"
			}
		}
		t.addChecked(h.Check, h.What, h.Sent, h.Lost, h.Duplicated, adopted, meanwhile, verdict)
	}
	return t
}

func remainTable(r *demo.Report) *table {
	t := &table{columns: []column{left("OF"), right("BEFORE"), right("AFTER"), left("RESULT")}}
	for _, l := range r.Remains {
		t.addChecked(l.Check, l.What, l.Before, l.After)
	}
	return t
}

func costTitle(r *demo.Report) string {
	if r.Cost == nil {
		return ""
	}
	return fmt.Sprintf("Cost: CPU time of a %d-byte frame from the NIC to a guest, median of %d rounds", r.Cost.FrameBytes, r.Cost.Rounds)
}

func costTable(r *demo.Report) *table {
	t := &table{columns: []column{
		left("WAY"), right("NS/FRAME"), right("NET NS"), right("NET/TAPSWITCH"), right("LOST %"), left("RESULT"), left("MEANING"),
	}}
	if r.Cost == nil {
		return t
	}
	for _, w := range r.Cost.Ways {
		net, ratio := "-", "-"
		if w.Ratio != 0 {
			net, ratio = number(w.Net), fmt.Sprintf("%.2f", w.Ratio)
		}
		t.addChecked(w.Check, w.Way, number(w.Gross), net, ratio, fmt.Sprintf("%.3f", 100*w.Loss))
		row := &t.rows[len(t.rows)-1]
		row.cells = append(row.cells, w.Meaning)
	}
	return t
}
