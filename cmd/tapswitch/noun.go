package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/vswitch/control"
)

// A noun is a command that asks the daemon one question.
type noun[T any] struct {
	name, short, long string
	ask               func(context.Context, *control.Client) (T, error)
	print             func(T) error // for people
}

// newNoun makes the command, with --json beside the output for people.
func newNoun[T any](e *env, n noun[T]) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   n.name,
		Short: n.short,
		Long:  n.long + "\n\n" + exitCodes,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := e.dial(e.socket)
			defer client.Close()
			answer, err := n.ask(cmd.Context(), client)
			if err != nil {
				return err
			}
			if asJSON {
				return e.printJSON(answer)
			}
			return n.print(answer)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON, for programs")
}

// printJSON prints v for programs, and for people who look at what programs get.
func (e *env) printJSON(v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}
