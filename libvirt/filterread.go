package libvirt

import "fmt"

// A filterReader reads the definitions of filters, each once.
type filterReader struct {
	c    *connection
	read map[string]filterReading
	// lost is the error of a connection that has broken meanwhile.
	lost error
}

type filterReading struct {
	filterDefinition
	err error
}

func newFilterReader(c *connection) *filterReader {
	return &filterReader{c: c, read: map[string]filterReading{}}
}

// resolve finds out what the filters of a domain's interfaces mean. The error is that of
// the connection; what libvirt says of a filter is noted at the interface.
func (r *filterReader) resolve(d Domain) error {
	for _, n := range d.Interfaces {
		if n.Filter != nil {
			n.Filter.resolve(n.MAC, r.load)
		}
	}
	return r.lost
}

func (r *filterReader) load(name string) (filterDefinition, error) {
	if known, ok := r.read[name]; ok {
		return known.filterDefinition, known.err
	}
	d, err := r.ask(name)
	r.read[name] = filterReading{d, err}
	return d, err
}

func (r *filterReader) ask(name string) (filterDefinition, error) {
	var text string
	err := r.c.limited(func() error {
		f, err := r.c.NwfilterLookupByName(name)
		if err == nil {
			text, err = r.c.NwfilterGetXMLDesc(f, 0)
		}
		return err
	})
	if err != nil {
		if !isAnswer(err) {
			r.lost = fmt.Errorf("reading filter %s: %w", name, err)
		}
		return filterDefinition{}, fmt.Errorf("libvirt does not tell what it says: %w", err)
	}
	d, err := parseFilter(text)
	if err != nil {
		err = fmt.Errorf("what it says is not understood: %w", err)
	}
	return d, err
}
