package rules

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A SyntaxError says where a rule is wrong.
type SyntaxError struct {
	Line   int // from 1
	Column int // from 1, in bytes
	Text   string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Text)
}

// maxLine bounds the memory that a line takes.
const maxLine = 4096

// Parse reads rules, one a line. The error is a *SyntaxError if the text is wrong.
func Parse(r io.Reader) ([]Rule, error) {
	var (
		rules []Rule
		rated int
		lines = bufio.NewScanner(r)
	)
	lines.Buffer(nil, maxLine)
	n := 0
	for lines.Scan() {
		n++
		p := parser{line: n, words: split(lines.Text())}
		if len(p.words) == 0 {
			continue
		}
		rule, err := p.rule()
		if err != nil {
			return nil, err
		}
		if rule.Rate > 0 {
			rated++
		}
		if rated > MaxRated {
			return nil, p.errorf(p.words[0], "this is rule %d with a rate, and a set has %d at most", rated, MaxRated)
		}
		if rules = append(rules, rule); len(rules) > Max {
			return nil, p.errorf(p.words[0], "this is rule %d, and a set has %d at most", len(rules), Max)
		}
	}
	switch err := lines.Err(); {
	case err == nil:
		return rules, nil
	case errors.Is(err, bufio.ErrTooLong):
		return nil, &SyntaxError{n + 1, maxLine, fmt.Sprintf("the line is longer than %d bytes", maxLine)}
	default:
		return nil, fmt.Errorf("reading rules: %w", err)
	}
}

type word struct {
	text   string
	column int
}

// split gives a line's words, without a comment.
func split(line string) []word {
	line, _, _ = strings.Cut(line, "#")
	var words []word
	for at := 0; at < len(line); {
		if strings.IndexByte(" \t\r", line[at]) >= 0 {
			at++
			continue
		}
		end := at
		for end < len(line) && strings.IndexByte(" \t\r", line[end]) < 0 {
			end++
		}
		words = append(words, word{line[at:end], at + 1})
		at = end
	}
	return words
}

type parser struct {
	line  int
	words []word
	rest  []word
}

func (p *parser) errorf(at word, format string, args ...any) error {
	return &SyntaxError{p.line, at.column, fmt.Sprintf(format, args...)}
}

// A clause reads what follows its name.
type clause struct {
	name, want string
	read       func(*parser, *Rule, word) error
}

var clauses = []clause{
	{"from", "an address or prefix, or any", func(p *parser, r *Rule, w word) (err error) {
		r.From, err = p.prefix(w)
		return err
	}},
	{"to", "an address or prefix, or any", func(p *parser, r *Rule, w word) (err error) {
		r.To, err = p.prefix(w)
		return err
	}},
	{"proto", "a protocol's name or number, or any", func(p *parser, r *Rule, w word) (err error) {
		r.Proto, err = p.proto(w)
		return err
	}},
	{"sport", "a port or a range", func(p *parser, r *Rule, w word) (err error) {
		r.Sport, err = p.numbers(w)
		return err
	}},
	{"dport", "a port or a range", func(p *parser, r *Rule, w word) (err error) {
		r.Dport, err = p.numbers(w)
		return err
	}},
	{"flags", "TCP flags, as in syn,!ack", func(p *parser, r *Rule, w word) (err error) {
		r.Flags, err = p.flags(w)
		return err
	}},
	{"fragment", "any, first, later or no", func(p *parser, r *Rule, w word) error {
		r.Fragment = Fragment(w.text)
		if !slices.Contains([]Fragment{AnyFragment, FirstFragment, LaterFragment, NoFragment}, r.Fragment) {
			return p.errorf(w, "%q is no kind of fragment: want any, first, later or no", w.text)
		}
		return nil
	}},
	{"length", "bytes or a range", func(p *parser, r *Rule, w word) (err error) {
		r.Length, err = p.numbers(w)
		return err
	}},
	{"over", "a rate, as in 1000/s", func(p *parser, r *Rule, w word) (err error) {
		r.Rate, err = p.rate(w)
		return err
	}},
}

func (p *parser) rule() (Rule, error) {
	r := Rule{Line: p.line}
	switch first := p.words[0]; first.text {
	case "drop":
		r.Drop = true
	case "pass":
	default:
		return r, p.errorf(first, "%q is no action: want drop or pass", first.text)
	}
	seen := map[string]word{}
	p.rest = p.words[1:]
	for len(p.rest) > 0 {
		name := p.rest[0]
		p.rest = p.rest[1:]
		if _, ok := seen[name.text]; ok {
			return r, p.errorf(name, "%s is there twice", name.text)
		}
		seen[name.text] = name
		if name.text == "per-source" {
			r.PerSource = true
			continue
		}
		i := slices.IndexFunc(clauses, func(c clause) bool { return c.name == name.text })
		if i < 0 {
			return r, p.errorf(name, "%q is not known: want from, to, proto, sport, dport, flags, fragment, length, over or per-source", name.text)
		}
		if len(p.rest) == 0 {
			name.column += len(name.text)
			return r, p.errorf(name, "%s wants %s", clauses[i].name, clauses[i].want)
		}
		value := p.rest[0]
		p.rest = p.rest[1:]
		if err := clauses[i].read(p, &r, value); err != nil {
			return r, err
		}
	}
	return r, p.check(r, seen)
}

// check looks at what no clause says alone.
func (p *parser) check(r Rule, seen map[string]word) error {
	for _, name := range []string{"sport", "dport"} {
		if at, ok := seen[name]; ok && !hasPorts(r.Proto) {
			return p.errorf(at, "%s wants a protocol that has ports: proto tcp, udp, sctp, dccp or udplite", name)
		}
	}
	if at, ok := seen["flags"]; ok && (r.Proto == nil || *r.Proto != 6) {
		return p.errorf(at, "flags wants proto tcp")
	}
	if r.From.IsValid() && r.To.IsValid() && r.From.Addr().Is4() != r.To.Addr().Is4() {
		return p.errorf(seen["to"], "from and to are of different families: nothing has both")
	}
	if at, ok := seen["over"]; ok && !r.Drop {
		return p.errorf(at, "only a drop rule has a rate: it drops what is over it")
	}
	if at, ok := seen["per-source"]; ok && r.Rate == 0 {
		return p.errorf(at, "per-source wants a rate: over 1000/s per-source")
	}
	return nil
}

func hasPorts(proto *uint8) bool {
	if proto == nil {
		return false
	}
	for _, p := range protocols {
		if p.number == *proto {
			return p.ports
		}
	}
	return false
}

func (p *parser) prefix(w word) (netip.Prefix, error) {
	if w.text == "any" {
		return netip.Prefix{}, nil
	}
	var (
		prefix netip.Prefix
		err    error
	)
	if strings.Contains(w.text, "/") {
		prefix, err = netip.ParsePrefix(w.text)
	} else {
		var a netip.Addr
		if a, err = netip.ParseAddr(w.text); err == nil && a.Zone() == "" {
			prefix = netip.PrefixFrom(a, a.BitLen())
		}
	}
	switch {
	case err != nil || !prefix.IsValid():
		return prefix, p.errorf(w, "%q is no address or prefix: want one like 198.18.0.0/15, 2001:db8::1 or any", w.text)
	case prefix.Addr().Is4In6():
		return prefix, p.errorf(w, "%q is an IPv4 address in IPv6's notation: write it as IPv4", w.text)
	case prefix != prefix.Masked():
		return prefix, p.errorf(w, "%s has bits beyond its length: want %s", w.text, prefix.Masked())
	}
	return prefix, nil
}

func (p *parser) proto(w word) (*uint8, error) {
	if w.text == "any" {
		return nil, nil
	}
	for _, known := range protocols {
		if known.name == w.text {
			return &known.number, nil
		}
	}
	n, err := strconv.ParseUint(w.text, 10, 8)
	if err != nil {
		return nil, p.errorf(w, "%q is no protocol: want a number to 255, tcp, udp, icmp, icmpv6, sctp, dccp, udplite, gre, esp, ah or igmp", w.text)
	}
	number := uint8(n)
	return &number, nil
}

func (p *parser) numbers(w word) (*Range, error) {
	first, last, isRange := strings.Cut(w.text, "-")
	a, err := strconv.ParseUint(first, 10, 16)
	b := a
	if err == nil && isRange {
		b, err = strconv.ParseUint(last, 10, 16)
	}
	if err != nil {
		return nil, p.errorf(w, "%q is no number to 65535, or two with a - between them", w.text)
	}
	if a > b {
		return nil, p.errorf(w, "%s ends before it begins", w.text)
	}
	return &Range{uint16(a), uint16(b)}, nil
}

func (p *parser) flags(w word) (Flags, error) {
	var f Flags
	column := w.column
	for name := range strings.SplitSeq(w.text, ",") {
		at := word{name, column}
		column += len(name) + 1
		plain, negated := strings.CutPrefix(name, "!")
		i := slices.Index(flagNames, plain)
		if i < 0 {
			return f, p.errorf(at, "%q is no TCP flag: want some of %s, each with a ! before it if it must be clear",
				name, strings.Join(flagNames, ","))
		}
		bit := uint8(1) << i
		if (f.Set|f.Clear)&bit != 0 {
			return f, p.errorf(at, "%s is there twice", plain)
		}
		if negated {
			f.Clear |= bit
		} else {
			f.Set |= bit
		}
	}
	return f, nil
}

// maxRate is above what any device receives.
const maxRate = 1_000_000_000

func (p *parser) rate(w word) (uint64, error) {
	digits, ok := strings.CutSuffix(w.text, "/s")
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || n == 0 || n > maxRate {
		return 0, p.errorf(w, "%q is no rate: want frames per second, from 1/s to %d/s", w.text, maxRate)
	}
	return n, nil
}
