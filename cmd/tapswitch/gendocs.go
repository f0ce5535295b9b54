package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func init() { commands = append(commands, newGenDocs) }

// newGenDocs makes the hidden command that make install calls.
func newGenDocs(*env) *cobra.Command {
	var man, completions string
	cmd := &cobra.Command{
		Use:    "gen-docs",
		Short:  "Write man pages and shell completions",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true
			var errs error
			if man != "" {
				errs = errors.Join(errs, genMan(root, man))
			}
			if completions != "" {
				errs = errors.Join(errs, genCompletions(root, completions))
			}
			return errs
		},
	}
	cmd.Flags().StringVar(&man, "man", "", "`directory` for man pages")
	cmd.Flags().StringVar(&completions, "completions", "", "`directory` like /usr/share, below which each shell has its own for completions")
	cmd.MarkFlagsOneRequired("man", "completions")
	return cmd
}

func genMan(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("writing man pages: %w", err)
	}
	for _, c := range root.Commands() {
		// Those who install completions need no pages on how to make them.
		c.Hidden = c.Hidden || c.Name() == "completion"
	}
	header := &doc.GenManHeader{Section: "8", Source: "tapswitch " + version, Manual: "Tapswitch"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return fmt.Errorf("writing man pages: %w", err)
	}
	return nil
}

func genCompletions(root *cobra.Command, dir string) error {
	for file, write := range map[string]func(string) error{
		"bash-completion/completions/tapswitch": func(f string) error { return root.GenBashCompletionFileV2(f, true) },
		"zsh/site-functions/_tapswitch":         root.GenZshCompletionFile,
		"fish/vendor_completions.d/tapswitch.fish": func(f string) error {
			return root.GenFishCompletionFile(f, true)
		},
	} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("writing completions: %w", err)
		}
		if err := write(path); err != nil {
			return fmt.Errorf("writing completions: %w", err)
		}
	}
	return nil
}
