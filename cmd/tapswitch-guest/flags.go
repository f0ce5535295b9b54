package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
)

// parse reads a command's arguments and flags, in any order, and gives the arguments;
// there are want of them, or any number if want is negative.
func (e *env) parse(command string, args []string, want int, add func(*flag.FlagSet)) ([]string, error) {
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.BoolVar(&e.asJSON, "json", false, "")
	f.StringVar(&e.guest.Pins, "pins", "", "")
	if add != nil {
		add(f)
	}
	var plain []string
	for {
		if err := f.Parse(args); err != nil {
			return nil, usagef("%s: %v", command, err)
		}
		if args = f.Args(); len(args) == 0 {
			break
		}
		plain, args = append(plain, args[0]), args[1:]
	}
	if want >= 0 && len(plain) != want {
		return nil, usagef("%s takes %d arguments, have %q", command, want, plain)
	}
	return plain, nil
}

// printJSON prints v for programs, and for people who look at what programs get.
func (e *env) printJSON(v any) error {
	j := json.NewEncoder(e.stdout)
	j.SetIndent("", "  ")
	j.SetEscapeHTML(false)
	if err := j.Encode(v); err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}
