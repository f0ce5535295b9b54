package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapswitch/tapswitch/libvirt"
	"github.com/tapswitch/tapswitch/vswitch/control"
)

// hookDir is where libvirt looks for hooks; those in the directories of drivers
// since 6.5.
const hookDir = "/etc/libvirt/hooks"

// hookMark shows that a script is ours.
const hookMark = "# Made by 'tapswitch hook install'"

// A hookScript is one of the scripts, and how it stands.
type hookScript struct {
	Hook  string `json:"hook"` // qemu or network
	File  string `json:"file"`
	State string `json:"state"`
}

// The states of a script.
const (
	hookInstalled = "installed"
	hookDiffers   = "differs" // ours, but not as install would make it now
	hookAbsent    = "not installed"
	hookForeign   = "somebody else's"
)

// hooks are the scripts as they should be.
type hooks struct {
	dir     string // of libvirt's hooks
	command string // the tapswitch-hook that they call
	beside  bool   // it is the one beside this command, because none was named
	socket  string // of the daemon, if it is not the default
}

func (h hooks) files() []hookScript {
	var scripts []hookScript
	for _, driver := range []string{libvirt.HookQEMU, libvirt.HookNetwork} {
		scripts = append(scripts, hookScript{Hook: driver, File: filepath.Join(h.dir, driver+".d", "tapswitch")})
	}
	return scripts
}

// text gives a script. A guest must start also when the command has gone.
func (h hooks) text(driver string) []byte {
	socket := ""
	if h.socket != control.DefaultSocket {
		socket = " --socket " + shellQuote(h.socket)
	}
	return fmt.Appendf(nil, `#!/bin/sh
%s; 'tapswitch hook uninstall' takes it away.
# It hands what libvirt says over to tapswitchd.
hook=%s
[ -x "$hook" ] || exit 0
exec "$hook"%s %s "$@"
`, hookMark, shellQuote(h.command), socket, driver)
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// status looks at the scripts.
func (h hooks) status() ([]hookScript, error) {
	scripts := h.files()
	for i := range scripts {
		s := &scripts[i]
		have, err := os.ReadFile(s.File)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
			s.State = hookAbsent
		case err != nil:
			return nil, fmt.Errorf("reading hook: %w", err)
		case !bytes.Contains(have, []byte("\n"+hookMark)):
			s.State = hookForeign
		case !bytes.Equal(have, h.text(s.Hook)) || !executable(s.File):
			s.State = hookDiffers
		default:
			s.State = hookInstalled
		}
	}
	return scripts, nil
}

func executable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().Perm()&0o111 != 0
}

// change carries out install or uninstall, and says whether libvirt has to look
// again. Nothing is changed if there is a script that is not ours.
func (h hooks) change(install bool) (did []string, err error) {
	scripts, err := h.status()
	if err != nil {
		return nil, err
	}
	for _, s := range scripts {
		if s.State == hookForeign {
			return nil, fmt.Errorf("%s is not of tapswitch's making: look at it, and remove or rename it first", s.File)
		}
	}
	if install && h.beside && !executable(h.command) {
		return nil, fmt.Errorf("there is no %s for the scripts to call: install it beside this command, or name it by --command", h.command)
	}
	for _, s := range scripts {
		switch {
		case install && s.State != hookInstalled:
			if err := writeScript(s.File, h.text(s.Hook)); err != nil {
				return did, fmt.Errorf("installing hook: %w", err)
			}
			did = append(did, "wrote "+s.File)
		case !install && s.State != hookAbsent:
			if err := os.Remove(s.File); err != nil {
				return did, fmt.Errorf("uninstalling hook: %w", err)
			}
			did = append(did, "removed "+s.File)
		}
	}
	return did, nil
}

// writeScript puts a script into place at once: libvirt may call it at any time.
func writeScript(file string, text []byte) error {
	dir := filepath.Dir(file)
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("there is no %s: install libvirt first, or name its directory for hooks by --dir", filepath.Dir(d))
			}
			return err
		}
	}
	// Not beside it, where libvirt would run it.
	made, err := os.CreateTemp(filepath.Dir(dir), ".tapswitch-*")
	if err != nil {
		return err
	}
	defer os.Remove(made.Name())
	_, err = made.Write(text)
	if err := errors.Join(err, made.Chmod(0o755), made.Close()); err != nil {
		return err
	}
	return os.Rename(made.Name(), file)
}

// hookFlags adds what the commands about scripts have in common.
func (e *env) hookFlags(cmd *cobra.Command, h *hooks) {
	cmd.Flags().StringVar(&h.dir, "dir", hookDir, "libvirt's `directory` for hooks")
	cmd.Flags().StringVar(&h.command, "command", "", "`path` of the tapswitch-hook that the scripts call (default: the one beside this command)")
}

// complete fills in what depends on how the command was called.
func (h *hooks) complete(e *env) (err error) {
	h.socket = e.socket
	if h.command == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding this command's path: %w", err)
		}
		h.command, h.beside = filepath.Join(filepath.Dir(self), "tapswitch-hook"), true
	}
	if h.command, err = filepath.Abs(h.command); err != nil {
		return fmt.Errorf("finding %s: %w", h.command, err)
	}
	return nil
}

func newHookInstall(e *env) *cobra.Command {
	return newHookChange(e, true, "install", "Put the scripts among libvirt's hooks", `Put the scripts among libvirt's hooks, beside those that are there. Scripts of an
earlier version are renewed; a file that is not of tapswitch's making is left as it
is, and nothing is changed.

A --socket is written into the scripts.`)
}

func newHookUninstall(e *env) *cobra.Command {
	return newHookChange(e, false, "uninstall", "Take the scripts away", `Take the scripts away from libvirt's hooks. Others stay as they are.`)
}

func newHookChange(e *env, install bool, name, short, long string) *cobra.Command {
	var h hooks
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long + "\n\n" + exitCodes,
		RunE: func(*cobra.Command, []string) error {
			if err := h.complete(e); err != nil {
				return err
			}
			did, err := h.change(install)
			for _, d := range did {
				fmt.Fprintln(e.stdout, d)
			}
			if err != nil {
				return err
			}
			text := "Nothing to do."
			if len(did) > 0 {
				text = "libvirt looks at its hooks when it is reloaded: systemctl reload libvirtd, or virtqemud and virtnetworkd. Guests go on."
			}
			_, err = fmt.Fprintln(e.stdout, text)
			return err
		},
	}
	e.hookFlags(cmd, &h)
	return cmd
}

func newHookStatus(e *env) *cobra.Command {
	var (
		h      hooks
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the scripts are among libvirt's hooks",
		Long: `Show whether the scripts are among libvirt's hooks. One that differs is of another
version of tapswitch, or calls another: 'tapswitch hook install' renews it.

` + exitCodes,
		RunE: func(*cobra.Command, []string) error {
			if err := h.complete(e); err != nil {
				return err
			}
			scripts, err := h.status()
			if err != nil {
				return err
			}
			if asJSON {
				return e.printJSON(scripts)
			}
			t := table{columns: []column{left("HOOK"), left("STATE"), left("FILE")}}
			for _, s := range scripts {
				t.add(s.Hook, s.State, s.File)
			}
			return t.print(e.stdout)
		},
	}
	e.hookFlags(cmd, &h)
	jsonFlag(cmd, &asJSON)
	return cmd
}
