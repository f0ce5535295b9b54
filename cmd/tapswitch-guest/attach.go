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

// An attachment is what the flags of attach say.
type attachment struct {
	file, to         string
	dest, returnDest string
	fib, routes      bool
	cpus, then       string
	foreground       bool
}

// A mode is a way to attach.
type mode struct {
	devices int // that it takes; any number above 0 if negative
	flags   func(*attachment, *flag.FlagSet)
	// attach gives what is to run while it is attached, if anything is.
	attach func(*env, []string, *attachment) (run func(context.Context) error, err error)
}

func (m mode) addFlags(a *attachment, f *flag.FlagSet) {
	if m.flags != nil {
		m.flags(a, f)
	}
}

// behindCPUs are the modes whose programs can run on the CPUs that cpumap hands frames to.
var behindCPUs = []string{"pass", "drop", "l2fwd", "l3fwd"}

// only is for modes that run without a process.
func only(attach func(*env, []string, *attachment) error) func(*env, []string, *attachment) (func(context.Context) error, error) {
	return func(e *env, devs []string, a *attachment) (func(context.Context) error, error) {
		return nil, attach(e, devs, a)
	}
}

var modes = map[string]mode{
	"pass": {1, nil, only(func(e *env, devs []string, _ *attachment) error { return e.guest.AttachPass(devs[0]) })},
	"drop": {
		1,
		func(a *attachment, f *flag.FlagSet) { f.StringVar(&a.file, "rules", "", "") },
		only(func(e *env, devs []string, a *attachment) error { return e.attachDrop(devs[0], a.file) }),
	},
	"reflect": {1, nil, only(func(e *env, devs []string, _ *attachment) error { return e.guest.AttachReflect(devs[0]) })},
	"l2fwd": {
		1,
		func(a *attachment, f *flag.FlagSet) {
			f.StringVar(&a.to, "to", "", "")
			f.StringVar(&a.dest, "dest", "", "")
			f.StringVar(&a.returnDest, "return-dest", "", "")
		},
		only(func(e *env, devs []string, a *attachment) error {
			return e.attachL2fwd(guestbpf.Pair{A: devs[0], B: a.to}, a.dest, a.returnDest)
		}),
	},
	"l3fwd": {
		-1,
		func(a *attachment, f *flag.FlagSet) {
			f.BoolVar(&a.fib, "fib", false, "")
			f.BoolVar(&a.routes, "routes", false, "")
		},
		(*env).attachL3fwd,
	},
}

const modeNames = "pass, drop, reflect, l2fwd, l3fwd or cpumap"

func (e *env) attach(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usagef("attach wants a mode: %s", modeNames)
	}
	name := args[0]
	var a attachment
	devices, err := e.parse("attach "+name, args[1:], -1, func(f *flag.FlagSet) {
		f.BoolVar(&a.foreground, "foreground", false, "")
		if name != "cpumap" {
			modes[name].addFlags(&a, f)
			return
		}
		f.StringVar(&a.cpus, "cpus", "", "")
		f.StringVar(&a.then, "then", "pass", "")
		for _, then := range behindCPUs {
			modes[then].addFlags(&a, f)
		}
	})
	if err != nil {
		return err
	}
	if name == "cpumap" {
		if !slices.Contains(behindCPUs, a.then) {
			return usagef("attach cpumap takes --then %s, not %q", strings.Join(behindCPUs, ", "), a.then)
		}
		if a.cpus == "" {
			return usagef("attach cpumap wants --cpus LIST, like 0-3,5")
		}
		if e.guest.CPUs, err = guestbpf.ParseCPUs(a.cpus); err != nil {
			return usagef("%v", err)
		}
		name = a.then
	}
	m, ok := modes[name]
	if !ok {
		return usagef("%q is no mode to attach: want %s", name, modeNames)
	}
	if len(devices) == 0 || m.devices > 0 && len(devices) != m.devices {
		return usagef("attach %s takes %s, have %q", name, map[bool]string{true: "one device", false: "devices"}[m.devices == 1], devices)
	}
	run, err := m.attach(e, devices, &a)
	if err != nil || !a.foreground {
		return err
	}
	if e.ready != nil {
		e.ready()
	}
	if run != nil {
		if err := run(ctx); err != nil {
			return err
		}
	}
	<-ctx.Done()
	_, err = e.guest.Detach(devices[0])
	return err
}

func (e *env) attachL3fwd(devs []string, a *attachment) (run func(context.Context) error, err error) {
	switch {
	case a.fib == a.routes:
		return nil, usagef("attach l3fwd wants --fib or --routes")
	case a.fib:
		return nil, e.guest.AttachFIB(devs)
	case !a.foreground:
		return nil, usagef("attach l3fwd --routes wants --foreground: it keeps routes in step as long as it runs")
	}
	follower, err := e.guest.AttachRoutes(devs)
	if err != nil {
		return nil, err
	}
	return follower.Run, nil
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
