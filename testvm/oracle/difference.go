package oracle

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// A place is where frames come out.
type place struct {
	name        string
	plain, fast []Output
}

// shownDifferences are told in full, with shownBytes of each.
const (
	shownDifferences = 6
	shownBytes       = 160
)

// differences tells in which frames a place of the two hosts differs, beyond
// their order.
func (p *place) differences() (d []string) {
	more := map[Output]int{}
	for _, o := range p.plain {
		more[o]++
	}
	for _, o := range p.fast {
		more[o]--
	}
	tell := func(outputs []Output, sign int, who string) {
		for _, o := range outputs {
			if sign*more[o] > 0 {
				more[o] -= sign
				d = append(d, fmt.Sprintf("%s: only on the %s host:\n%s", p.name, who, o))
			}
		}
	}
	tell(p.plain, 1, "plain")
	tell(p.fast, -1, "fast")
	return d
}

// reordered tells of frames between the same two addresses whose order differs.
// Only untagged unicast counts: see the package's comment.
func (p *place) reordered() string {
	flows := func(outputs []Output) map[string][]Output {
		m := map[string][]Output{}
		for _, o := range outputs {
			if o.Data[0]&1 == 0 && !tagType(binary.BigEndian.Uint16([]byte(o.Data[12:14]))) {
				m[o.Data[:12]] = append(m[o.Data[:12]], o)
			}
		}
		return m
	}
	fast := flows(p.fast)
	for addresses, want := range flows(p.plain) {
		if got := fast[addresses]; !slices.Equal(want, got) {
			return fmt.Sprintf("%s: frames to %x from %x are in another order", p.name, addresses[:6], addresses[6:])
		}
	}
	return ""
}

func (o Output) String() string { return describe(o.Header[:], []byte(o.Data)) }

// describe shows a frame for people.
func describe(header, data []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %d bytes", len(data))
	if n, ok := serial(data); ok {
		fmt.Fprintf(&b, ", frame %d", n)
	}
	if header != nil {
		fmt.Fprintf(&b, ", header %x", header)
	}
	b.WriteString("\n")
	shown := data[:min(len(data), shownBytes)]
	for line := range strings.Lines(hex.Dump(shown)) {
		b.WriteString("    " + line)
	}
	for _, l := range gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default).Layers() {
		if l.LayerType() == gopacket.LayerTypePayload || l.LayerType() == gopacket.LayerTypeDecodeFailure {
			continue
		}
		s := gopacket.LayerString(l)
		fmt.Fprintf(&b, "    %s\n", s[:min(len(s), 200)])
	}
	return b.String()
}

// serial finds the number that the generator gave a frame, if there was room.
func serial(data []byte) (uint64, bool) {
	at := bytes.Index(data[min(len(data), ethLen):], []byte(serialMagic))
	if at < 0 || len(data) < ethLen+at+len(serialMagic)+8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(data[ethLen+at+len(serialMagic):]), true
}

// A Difference says where the two hosts differ, and what went before.
type Difference struct {
	found []string
	late  bool // the datapath did not follow
	text  string
}

func (d *Difference) Error() string { return d.text }

// Reason gives the first difference, in short.
func (d *Difference) Reason() string {
	lines := strings.SplitN(d.found[0], "\n", 3)
	return strings.Join(lines[:min(2, len(lines))], " ")
}

// difference makes an error of what was found and of the frames around it.
func (p *pair) difference(found []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "the hosts differ in %d things\n", len(found))
	for i, d := range found {
		if i == shownDifferences {
			b.WriteString("…\n")
			break
		}
		b.WriteString(d + "\n")
	}
	first := strings.Join(found[:1], "")
	b.WriteString("what went in since the last comparison:\n")
	for i, s := range p.journal {
		fmt.Fprintf(&b, "%4d %s\n", i, s)
		if f := s.Frame; f != nil {
			if n, ok := serial(f.data); ok && strings.Contains(first, fmt.Sprintf("frame %d,", n)) {
				b.WriteString(describe(f.header[:], f.data))
			}
		}
	}
	return &Difference{found: found, text: b.String()}
}
