package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch"
)

func newDomainTune(e *env) *cobra.Command {
	var (
		target, mac string
		yes, dry    bool
		t           libvirt.Tuning
	)
	cmd := &cobra.Command{
		Use:   "tune NAME",
		Short: "Change a domain's definition so that its interfaces are fast",
		Long: `Change the definition of a libvirt domain as 'tapswitch domain check' advises: show
the difference, ask, and define the domain anew. All else in the definition stays as
it is. A running domain goes on as it is; the change holds from its next start on
(a reboot from inside is none).

Without flags it makes the changes that cost nothing. Filters and limits stay: whether
a guest is trusted is a person's to say.

` + exitCodes,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if mac != "" {
				m, err := vswitch.ParseMAC(mac)
				if err != nil {
					return &usageError{err}
				}
				t.MAC = &m
			}
			return e.tune(cmd.Context(), target, args[0], t, dry, yes)
		},
	}
	connectFlag(cmd, &target)
	cmd.Flags().StringVar(&mac, "mac", "", "change only the interface with this `address`")
	cmd.Flags().BoolVar(&t.Virtio, "virtio", false, "give interfaces of other models virtio; the guest needs a driver for it")
	cmd.Flags().BoolVar(&t.NativeXDP, "native-xdp", false, "switch the host's offloads off, for native XDP on the tap; bulk TCP from the guest gets slower")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show the difference alone")
	cmd.Flags().BoolVar(&yes, "yes", false, "don't ask")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "yes")
	return cmd
}

func (e *env) tune(ctx context.Context, target, name string, t libvirt.Tuning, dry, yes bool) error {
	s, err := openLibvirt(ctx, target)
	if err != nil {
		return err
	}
	defer s.Close()
	text, err := s.Definition(name)
	if err != nil {
		return err
	}
	tuned, err := t.Tune(text)
	if err != nil {
		return err
	}
	if len(tuned.Changes) == 0 {
		_, err := fmt.Fprintln(e.stdout, "Nothing to change.")
		return err
	}
	if err := e.printDiff(name, tuned); err != nil || dry {
		return err
	}
	if !yes {
		if err := e.confirm(fmt.Sprintf("Change the definition of %s?", name)); err != nil {
			return err
		}
	}
	// What somebody else has changed since then would be lost.
	now, err := s.Definition(name)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, text) {
		return fmt.Errorf("the definition of %s has changed meanwhile: look at it again", name)
	}
	if err := s.Define([]byte(tuned.After)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "Changed; it holds from the next start of %s on.\n", printable(name))
	return err
}

// printDiff shows what is changed.
func (e *env) printDiff(name string, t libvirt.Tuned) error {
	diff := udiff.Unified(name+" (defined)", name+" (tuned)", t.Before, t.After)
	for line := range strings.Lines(diff) {
		if _, err := fmt.Fprintln(e.stdout, printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return fmt.Errorf("printing the difference: %w", err)
		}
	}
	return nil
}

// confirm gives an error unless a person says yes.
func (e *env) confirm(question string) error {
	fmt.Fprintf(e.stdout, "%s [y/N] ", printable(question))
	answer, err := bufio.NewReader(e.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	case "":
		if err != nil {
			return errors.New("nothing changed: nobody is there to answer; use --yes")
		}
	}
	return errors.New("nothing changed")
}
