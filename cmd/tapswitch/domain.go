package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch"
)

func init() { commands = append(commands, newDomain) }

func newDomain(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "domain",
		Short: "Say what makes a libvirt domain fast, and change it",
		Long: `Say what in the XML of a libvirt domain makes its interfaces fast or keeps them
slow, and change it.

` + exitCodes,
	}
	cmd.AddCommand(newDomainCheck(e), newDomainTune(e))
	return cmd
}

// connectFlag adds the flag that says where libvirt is.
func connectFlag(cmd *cobra.Command, target *string) {
	cmd.Flags().StringVar(target, "connect", "", "libvirt's `socket` or URI (default: the system's QEMU driver)")
}

// A checkedDomain is what check tells.
type checkedDomain struct {
	Name       string             `json:"name"`
	UUID       string             `json:"uuid"`
	Source     string             `json:"source"` // "running", "defined", or the file
	VCPUs      int                `json:"vcpus"`
	Interfaces []checkedInterface `json:"interfaces"`
}

type checkedInterface struct {
	Label string `json:"label"` // for people: the alias, or the number in a definition
	libvirt.Checked
	Remarks []string `json:"remarks"`
}

func newDomainCheck(e *env) *cobra.Command {
	var (
		target string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "check NAME|FILE",
		Short: "Show which interfaces of a domain are fast, and what to change",
		Long: `Show for each interface of a domain by which way its frames go, why, and which
changes of the XML make it faster. It looks at the XML alone: what the bridge and
rules on the host say beside it, 'tapswitch ports' shows.

NAME is a domain of libvirt's; its XML is that of the running domain, or of its
definition if it does not run. A FILE has a slash in it, ends in .xml, or is - for
standard input.

FROM GUEST is the way of frames that the guest sends: "tc", or "native XDP" if the
guest can only send complete frames; "bridge" if they are held back. TO GUEST is
"fast" or "bridge". "none" stands for an interface that is on no Linux bridge.

A change ends with the command that makes it; those without are a person's to make.

` + exitCodes,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := e.checkDomain(cmd.Context(), target, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return e.printJSON(d)
			}
			return e.printDomain(d)
		},
	}
	connectFlag(cmd, &target)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *env) checkDomain(ctx context.Context, target, arg string) (checkedDomain, error) {
	if arg == "-" || strings.Contains(arg, "/") || strings.HasSuffix(arg, ".xml") {
		text, err := e.readXML(arg)
		if err != nil {
			return checkedDomain{}, err
		}
		return checkXML(text, arg, noLibvirt{})
	}
	s, err := openLibvirt(ctx, target)
	if err != nil {
		return checkedDomain{}, err
	}
	defer s.Close()
	text, running, err := s.Domain(arg)
	if errors.Is(err, os.ErrNotExist) {
		if _, statErr := os.Stat(arg); statErr == nil {
			err = fmt.Errorf("%w; for the file of that name write ./%s", err, arg)
		}
	}
	if err != nil {
		return checkedDomain{}, err
	}
	source := "defined"
	if running {
		source = "running"
	}
	return checkXML(text, source, s)
}

func openLibvirt(ctx context.Context, target string) (*libvirt.Session, error) {
	t, err := libvirt.ParseTarget(target)
	if err != nil {
		return nil, &usageError{err}
	}
	return t.Open(ctx)
}

// readXML reads XML from a file, or from standard input.
func (e *env) readXML(file string) ([]byte, error) {
	r := e.stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("reading domain XML: %w", err)
		}
		defer f.Close()
		r = f
	}
	text, err := io.ReadAll(io.LimitReader(r, libvirt.MaxXML+1))
	if err != nil {
		return nil, fmt.Errorf("reading domain XML: %w", err)
	}
	return text, nil
}

// A teller tells what a domain's XML only names.
type teller interface {
	Network(name string) (libvirt.Network, error)
	Filters(libvirt.Domain) error
}

// noLibvirt is nobody to ask.
type noLibvirt struct{}

func (noLibvirt) Network(string) (libvirt.Network, error) { return libvirt.Network{}, os.ErrNotExist }
func (noLibvirt) Filters(libvirt.Domain) error            { return nil }

// checkXML checks a domain.
func checkXML(text []byte, source string, about teller) (checkedDomain, error) {
	d, err := libvirt.ParseDomain(text)
	if err != nil {
		return checkedDomain{}, err
	}
	if err := about.Filters(d); err != nil {
		return checkedDomain{}, err
	}
	checked := checkedDomain{Name: d.Name, UUID: d.UUID, Source: source, VCPUs: d.VCPUs, Interfaces: []checkedInterface{}}
	for i, n := range d.Interfaces {
		var remarks []string
		if n.Network != "" {
			w, err := about.Network(n.Network)
			switch {
			case err == nil:
				n = n.On(w)
				if w.Routed() {
					remarks = append(remarks, fmt.Sprintf("the host routes what goes out of network %s; frames between its guests alone are bridged, and can be fast", w.Name))
				}
			case !errors.Is(err, os.ErrNotExist):
				return checkedDomain{}, err
			case n.Bridge == "":
				remarks = append(remarks, fmt.Sprintf("network %s is not known here; this holds if it puts interfaces on a Linux bridge", n.Network))
			}
		}
		c := d.Check(n)
		if c.Held == nil {
			c.Held = []vswitch.HoldReason{}
		}
		if c.Advice == nil {
			c.Advice = []libvirt.Advice{}
		}
		checked.Interfaces = append(checked.Interfaces, checkedInterface{Label: cmp.Or(n.Alias, fmt.Sprintf("#%d", i+1)), Checked: c, Remarks: append([]string{}, remarks...)})
	}
	return checked, nil
}

func (e *env) printDomain(d checkedDomain) error {
	if len(d.Interfaces) == 0 {
		_, err := fmt.Fprintln(e.stdout, printable("Domain "+d.Name+" has no interfaces."))
		return err
	}
	if _, err := fmt.Fprintf(e.stdout, "%s\n\n", printable(fmt.Sprintf("Domain %s (%s), vCPUs: %d", d.Name, d.Source, d.VCPUs))); err != nil {
		return err
	}
	t := table{columns: []column{
		left("INTERFACE"), left("MAC"), left("TYPE"), left("BRIDGE"), left("MODEL"), right("QUEUES"), left("FROM GUEST"), left("TO GUEST"),
	}}
	tune := ""
	for _, n := range d.Interfaces {
		t.add(n.Label, n.MAC, n.Type, cmp.Or(n.Bridge, "-"), cmp.Or(n.Model, "-"), n.Queues, n.In, n.Out)
		for _, h := range n.Held {
			t.note("%s (%s): %s", heldWord(h.Direction), h.Code, h.Text)
		}
		if n.In == libvirt.WayTC || n.In == libvirt.WayXDP {
			t.note("%s from the guest: %s", n.In, n.Why)
		}
		for _, r := range n.Remarks {
			t.note("note: %s", r)
		}
		for _, a := range n.Advice {
			by := ""
			if a.By != "" {
				by = " [" + a.By + "]"
				tune = "\n'tapswitch domain tune' makes the changes with [tune].\n"
			}
			t.note("change: %s: %s%s", a.Change, a.Why, by)
		}
	}
	if err := t.print(e.stdout); err != nil {
		return err
	}
	_, err := fmt.Fprint(e.stdout, tune)
	return err
}
