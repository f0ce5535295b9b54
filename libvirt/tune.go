package libvirt

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/beevik/etree"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A Tuning says which changes to make in a domain's definition. The zero value
// makes those that cost nothing, in all interfaces.
type Tuning struct {
	Virtio    bool // give interfaces of other models virtio
	NativeXDP bool // switch the host's offloads off
	// MAC names the one interface to change.
	MAC *vswitch.MAC
}

func (t Tuning) makes(a Advice) bool {
	switch a.By {
	case ByTune:
		return true
	case ByVirtio:
		return t.Virtio
	case ByNativeXDP:
		return t.NativeXDP
	}
	return false
}

// A Tuned is a definition before and after its tuning. Both are laid out alike, so
// that they differ in the changes alone.
type Tuned struct {
	Before, After string
	Changes       []string
}

// Tune changes a domain's definition. All in it that is not changed stays, whether
// it is known here or not.
func (t Tuning) Tune(text []byte) (Tuned, error) {
	d, err := ParseDomain(text)
	if err != nil {
		return Tuned{}, err
	}
	doc := etree.NewDocument()
	doc.ReadSettings.PreserveCData = true
	doc.WriteSettings.AttrSingleQuote = true // as libvirt writes it
	if err := doc.ReadFromBytes(text); err != nil {
		return Tuned{}, fmt.Errorf("reading domain XML: %w", err)
	}
	elements := doc.FindElements("./domain/devices/interface")
	if len(elements) != len(d.Interfaces) {
		return Tuned{}, fmt.Errorf("reading domain XML: it has %d interfaces or %d", len(elements), len(d.Interfaces))
	}
	var r Tuned
	if r.Before, err = doc.WriteToString(); err != nil {
		return Tuned{}, fmt.Errorf("writing domain XML: %w", err)
	}
	found := false
	for i, n := range d.Interfaces {
		if t.MAC != nil && n.MAC != *t.MAC {
			continue
		}
		found = true
		for _, a := range d.advise(n, t) {
			if t.makes(a) {
				a.edit(elements[i])
				r.Changes = append(r.Changes, fmt.Sprintf("%s: %s", n.MAC, a.Change))
			}
		}
	}
	if !found && t.MAC != nil {
		return Tuned{}, fmt.Errorf("domain %s has no interface with the address %s", d.Name, *t.MAC)
	}
	if r.After, err = doc.WriteToString(); err != nil {
		return Tuned{}, fmt.Errorf("writing domain XML: %w", err)
	}
	return r, nil
}

// An edit changes an <interface>.
type edit func(*etree.Element)

func setVirtio(e *etree.Element) { child(e, "model").CreateAttr("type", "virtio") }

func dropDriverName(e *etree.Element) { child(e, "driver").RemoveAttr("name") }

func setQueues(n int) edit {
	return func(e *etree.Element) { child(e, "driver").CreateAttr("queues", strconv.Itoa(n)) }
}

func setHostOffloadsOff(e *etree.Element) {
	host := child(child(e, "driver"), "host")
	for _, name := range (Offloads{true, true, true, true, true, true}).on() {
		host.CreateAttr(name, "off")
	}
}

// child gives the element's child of that name, which it makes if there is none.
func child(e *etree.Element, name string) *etree.Element {
	if c := e.SelectElement(name); c != nil {
		return c
	}
	c := etree.NewElement(name)
	outer := indentation(e)
	inner := outer
	if outer != "" {
		inner += "  "
	}
	last := -1
	for _, other := range e.ChildElements() {
		last = other.Index()
	}
	if last < 0 {
		e.AddChild(etree.NewText(inner))
		e.AddChild(c)
		e.AddChild(etree.NewText(outer))
		return c
	}
	e.InsertChildAt(last+1, etree.NewText(inner))
	e.InsertChildAt(last+2, c)
	return c
}

// indentation gives the line break and the white space before an element, nothing if
// it is on a line with others.
func indentation(e *etree.Element) string {
	if i := e.Index(); i > 0 {
		if before, ok := e.Parent().Child[i-1].(*etree.CharData); ok && strings.TrimSpace(before.Data) == "" {
			return before.Data
		}
	}
	return ""
}
