package policy

import "github.com/tapswitch/tapswitch/vswitch"

// A portMatch is the device, or devices, that all frames come in or leave by for
// which a rule holds.
type portMatch struct {
	deviceMatch
	ifindex   int // instead of a name
	direction vswitch.Direction
	filter    bool // the rule is libvirt's for the filter of the device
}

// directionAt gives the direction in which frames of the port may meet the
// effect's rules, given that these name their devices: those of libvirt's filters, or
// all others.
func (e effect) directionAt(p vswitch.Port, filters bool) (d vswitch.Direction) {
	for _, m := range e.ports {
		if m.filter != filters {
			continue
		}
		if m.ifindex == p.Ifindex || m.ifindex == 0 && m.matches(p.Name) {
			d |= m.direction
		}
	}
	return d
}

// everywhere says whether frames of any port may meet the effect.
func (e effect) everywhere() bool { return e.drops || len(e.ports) == 0 }

// at gives those of the effects that frames of the port meet because of a rule
// that names it, of libvirt's filters or another, and in which direction.
func at(effects []effect, p vswitch.Port, filters bool) (met []effect, d vswitch.Direction) {
	for _, e := range effects {
		if e.everywhere() {
			continue
		}
		if at := e.directionAt(p, filters); at != 0 {
			met = append(met, e)
			d |= at
		}
	}
	return met, d
}

// everywhere gives those of the effects that frames of any port may meet.
func everywhere(effects []effect) (met []effect) {
	for _, e := range effects {
		if e.everywhere() {
			met = append(met, e)
		}
	}
	return met
}
