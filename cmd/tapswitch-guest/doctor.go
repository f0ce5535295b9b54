package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/tapswitch/tapswitch/guestbpf"
)

func (e *env) doctor(_ context.Context, args []string) error {
	devices, err := e.parse("doctor", args, -1, nil)
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		if devices, err = guestbpf.Devices(); err != nil {
			return err
		}
	}
	all := []guestbpf.Diagnosis{}
	for _, dev := range devices {
		d, err := e.guest.Diagnose(dev)
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	if e.asJSON {
		return e.printJSON(all)
	}
	if len(all) == 0 {
		_, err := io.WriteString(e.stdout, "there is no device with a driver of its own: name one\n")
		return err
	}
	var b strings.Builder
	for _, d := range all {
		writeDiagnosis(&b, d)
	}
	_, err = io.WriteString(e.stdout, b.String())
	return err
}

func writeDiagnosis(b *strings.Builder, d guestbpf.Diagnosis) {
	fmt.Fprintf(b, "%s: %s, Linux %s\n", d.Device, d.Driver, d.Kernel)
	fmt.Fprintf(b, "  MTU %d, queue pairs %d of %d, CPUs %d, rings rx %d of %d and tx %d of %d\n", d.MTU, d.Queues, d.MaxQueues, d.CPUs,
		d.RxRing, d.MaxRxRing, d.TxRing, d.MaxTxRing)
	if v := d.Virtio; v != nil {
		fmt.Fprintf(b, "  mergeable buffers: %t; the host may leave undone: %s\n", v.Mergeable, strings.Join(v.GuestOffloads, ", "))
	}
	switch {
	case d.Program != "":
		fmt.Fprintf(b, "  native XDP: %s is attached\n", d.Program)
	case d.Refusal == "":
		b.WriteString("  native XDP: attaches\n")
	}
	for _, f := range d.Findings {
		fmt.Fprintf(b, "  %s: %s\n", map[bool]string{true: "PROBLEM", false: "remark"}[f.Problem], f.Text)
		if f.Fix != "" {
			fmt.Fprintf(b, "    → %s\n", f.Fix)
		}
	}
}
