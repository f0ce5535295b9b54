package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/testvm/kernel"
)

func init() { commands = append(commands, newKernels, newFetch) }

// A cached is a kernel as 'testvm kernels' shows it.
type cached struct {
	Name    string `json:"name"`
	Cached  bool   `json:"cached"`
	Release string `json:"release,omitempty"`
}

func newKernels(e *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "kernels",
		Short: "Show which kernels there are",
		Long: `Show which kernels guests can have, and which of them are in the cache. 'testvm
run' downloads a kernel that is not, once.

The cache is tapswitch/kernels in the user's cache directory, unless
` + kernel.DirEnv + ` names another. To have Debian's present release of a
kernel, remove its directory there.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			kernels, err := listKernels()
			if err != nil {
				return err
			}
			if asJSON {
				j := json.NewEncoder(e.stdout)
				j.SetIndent("", "  ")
				return j.Encode(kernels)
			}
			w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "KERNEL\tCACHED RELEASE")
			for _, k := range kernels {
				release := "-"
				if k.Cached {
					release = k.Release
				}
				fmt.Fprintf(w, "%s\t%s\n", k.Name, release)
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func listKernels() ([]cached, error) {
	var list []cached
	for _, name := range kernel.Names() {
		k, err := new(kernel.Cache).Find(name)
		switch {
		case err == nil:
			list = append(list, cached{name, true, k.Release})
		case errors.Is(err, os.ErrNotExist):
			list = append(list, cached{Name: name})
		default:
			return nil, err
		}
	}
	return list, nil
}

func newFetch(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "fetch [KERNEL]...",
		Short: "Download kernels into the cache",
		Long: `Download kernels from the mirror of Debian that this machine's apt uses, by apt
with a state of its own. All that are not in the cache, if none is named.`,
		ValidArgs: kernel.Names(),
		Args:      cobra.OnlyValidArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = kernel.Names()
			}
			cache := &kernel.Cache{Log: e.stderr}
			for _, name := range args {
				if _, err := cache.Fetch(cmd.Context(), name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
