package libvirt

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A FilterRef names the nwfilter that guards an interface.
type FilterRef struct {
	Name string `json:"name"`
	// Parameters are its variables; one that is named more than once is a list.
	Parameters map[string][]string `json:"parameters,omitempty"`
	// Known is what libvirt's definition of the filter means, Unclear why it is not
	// understood. Both are empty until libvirt has been asked.
	Known   *KnownFilter `json:"-"`
	Unclear string       `json:"-"`
}

// A KnownFilter is a filter that is understood.
type KnownFilter struct {
	// Open says that it lets all unicast frames through. Else Frames are those that it
	// is sure to let through; what becomes of the rest is for the filter to judge.
	Open   bool
	Frames vswitch.Filter
}

func filterRef(x *libvirtxml.DomainInterfaceFilterRef) *FilterRef {
	if x == nil {
		return nil
	}
	f := &FilterRef{Name: x.Filter}
	for _, p := range x.Parameters {
		if f.Parameters == nil {
			f.Parameters = map[string][]string{}
		}
		f.Parameters[p.Name] = append(f.Parameters[p.Name], p.Value)
	}
	return f
}

// resolve finds out what the filter lets through of an interface with that address.
// load gives the definitions of filters; its errors are no reason to fail.
func (f *FilterRef) resolve(mac vswitch.MAC, load func(string) (filterDefinition, error)) {
	f.Known, f.Unclear = nil, ""
	all, err := allRules(f.Name, load)
	var rules *filterRules
	if _, ok := f.Parameters["MAC"]; err == nil && ok {
		err = errors.New("it is given another address than the interface's")
	}
	if err == nil {
		rules, err = newFilterRules(all, mac, f.Parameters)
	}
	if err != nil {
		f.Unclear = err.Error()
		return
	}
	frames, open := rules.frames()
	f.Known = &KnownFilter{Open: open}
	if !open {
		f.Known.Frames = frames
	}
}

// holds gives the reasons that lie in the filter, and a remark if it is honoured.
func (f *FilterRef) holds() []vswitch.HoldReason {
	if f == nil {
		return nil
	}
	const remedy = "take <filterref> out of the interface if the guest is trusted"
	switch {
	case f.Unclear != "":
		return []vswitch.HoldReason{vswitch.Hold(vswitch.HoldFilter, "libvirt's filter %s decides over its frames, but %s; or %s", f.Name, f.Unclear, remedy)}
	case f.Known == nil:
		return []vswitch.HoldReason{vswitch.Hold(vswitch.HoldFilter, "libvirt's filter %s decides over its frames, and libvirt has not been asked what it says; %s", f.Name, remedy)}
	case f.Known.Open:
		return []vswitch.HoldReason{{Code: vswitch.HoldFilter, Text: fmt.Sprintf("libvirt's filter %s stops no unicast frame", f.Name)}}
	}
	r := vswitch.HoldReason{
		Code: vswitch.HoldFilter,
		Text: fmt.Sprintf("libvirt's filter %s is honoured: by the fast path go %s; the rest goes by the bridge and the filter", f.Name, f.Known.Frames),
	}
	if f.Known.Frames.In == 0 {
		r.Direction |= vswitch.In
	}
	if f.Known.Frames.Out == 0 {
		r.Direction |= vswitch.Out
	}
	return []vswitch.HoldReason{r}
}
