package main

import (
	"context"
	"fmt"

	"github.com/tapswitch/tapswitch/testvm/demo"
)

// showLibvirtLab runs the lab with libvirt's guests and prints each step's ports, as
// JSON all at the end.
func (e *env) showLibvirtLab(ctx context.Context, o demo.Options, asJSON bool) error {
	steps := []demo.LibvirtStep{}
	err := demo.RunLibvirt(ctx, o, func(s demo.LibvirtStep) error {
		steps = append(steps, s)
		if asJSON {
			return nil
		}
		if _, err := fmt.Fprintf(e.stdout, "After %.1f s: %s\n\n", s.Took, s.What); err != nil {
			return err
		}
		if err := e.printPorts(s.Ports); err != nil {
			return err
		}
		_, err := fmt.Fprintln(e.stdout)
		return err
	})
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err == nil && asJSON {
		err = e.printJSON(steps)
	}
	return err
}
