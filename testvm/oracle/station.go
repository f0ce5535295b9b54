package oracle

// A station is a MAC that the generator has behind a port.
type station struct {
	mac  mac
	port int
	vlan uint16 // in which it speaks on a VLAN-aware bridge
}

const (
	stationsPerPort = 6
	maxStations     = 48
)

// add adds a station, in place of another once there are many.
func (g *generator) add(s *station) {
	if len(g.stations) < maxStations {
		g.stations = append(g.stations, s)
		return
	}
	g.stations[g.IntN(len(g.stations))] = s
}

// speaker gives a random one of the stations that match, nil if none does.
func (g *generator) speaker(match func(*station) bool) *station {
	var found []*station
	for _, s := range g.stations {
		if match(s) {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return one(g, found)
}

// somePort gives a random port that is up.
func (g *generator) somePort() (int, bool) {
	var up []int
	for i := range g.network.ports {
		if g.network.ports[i].up {
			up = append(up, i)
		}
	}
	if len(up) == 0 {
		return 0, false
	}
	return one(g, up), true
}
