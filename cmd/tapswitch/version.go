package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// version is set by the linker (see the Makefile).
var version = "unknown"

func init() { commands = append(commands, newVersion) }

func newVersion(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this command",
		Long:  "Show the version of this command; 'tapswitch status' shows the daemon's.",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(e.stdout, "tapswitch %s\n", version)
			return err
		},
	}
}
