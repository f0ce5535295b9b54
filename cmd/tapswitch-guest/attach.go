package main

import (
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/tapswitch/tapswitch/guestbpf"
	"github.com/tapswitch/tapswitch/guestbpf/rules"
)

func (e *env) attach(ctx context.Context, args []string) error {
	var (
		file, to         string
		dest, returnDest string
		foreground       bool
	)
	if len(args) == 0 {
		return usagef("attach wants a mode: pass, drop, reflect or l2fwd")
	}
	mode := guestbpf.Mode(args[0])
	if !slices.Contains([]guestbpf.Mode{guestbpf.Pass, guestbpf.Drop, guestbpf.Reflect, guestbpf.L2fwd}, mode) {
		return usagef("%q is no mode to attach: want pass, drop, reflect or l2fwd", args[0])
	}
	devices, err := e.parse("attach "+args[0], args[1:], 1, func(f *flag.FlagSet) {
		f.BoolVar(&foreground, "foreground", false, "")
		switch mode {
		case guestbpf.Drop:
			f.StringVar(&file, "rules", "", "")
		case guestbpf.L2fwd:
			f.StringVar(&to, "to", "", "")
			f.StringVar(&dest, "dest", "", "")
			f.StringVar(&returnDest, "return-dest", "", "")
		}
	})
	if err != nil {
		return err
	}
	dev := devices[0]
	switch mode {
	case guestbpf.Pass:
		err = e.guest.AttachPass(dev)
	case guestbpf.Reflect:
		err = e.guest.AttachReflect(dev)
	case guestbpf.Drop:
		err = e.attachDrop(dev, file)
	case guestbpf.L2fwd:
		err = e.attachL2fwd(guestbpf.Pair{A: dev, B: to}, dest, returnDest)
	}
	if err != nil || !foreground {
		return err
	}
	<-ctx.Done()
	_, err = e.guest.Detach(dev)
	return err
}

func (e *env) attachDrop(dev, file string) error {
	in := e.stdin
	switch file {
	case "":
		return usagef("attach drop wants --rules FILE, or - for standard input")
	case "-":
		file = "standard input"
	default:
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("reading rules: %w", err)
		}
		defer f.Close()
		in = f
	}
	set, err := rules.Parse(in)
	if err != nil {
		return fmt.Errorf("reading rules from %s: %w", file, err)
	}
	return e.guest.AttachDrop(dev, set)
}

func (e *env) attachL2fwd(p guestbpf.Pair, dest, returnDest string) (err error) {
	if p.B == "" {
		return usagef("attach l2fwd wants --to DEV")
	}
	if p.ToB, err = parseMAC(dest); err != nil {
		return err
	}
	if p.ToA, err = parseMAC(returnDest); err != nil {
		return err
	}
	return e.guest.AttachL2fwd(p)
}

// parseMAC reads the address of one station; nil if the text is empty.
func parseMAC(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	mac, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(text) != len("00:00:00:00:00:00") || len(mac) != 6 || mac[0]&1 != 0 {
		return nil, usagef("%q is no address of one station: want one like 02:00:00:00:00:01", text)
	}
	return mac, nil
}

func (e *env) detach(_ context.Context, args []string) error {
	var all bool
	devices, err := e.parse("detach", args, -1, func(f *flag.FlagSet) { f.BoolVar(&all, "all", false, "") })
	if err != nil {
		return err
	}
	var detached []string
	switch {
	case all && len(devices) == 0:
		detached, err = e.guest.DetachAll()
	case !all && len(devices) == 1:
		detached, err = e.guest.Detach(devices[0])
	default:
		return usagef("detach wants one device, or --all")
	}
	if err != nil {
		return err
	}
	if e.asJSON {
		return e.printJSON(map[string][]string{"detached": append([]string{}, detached...)})
	}
	for _, d := range detached {
		if _, err := io.WriteString(e.stdout, "detached "+d+"\n"); err != nil {
			return err
		}
	}
	return nil
}
