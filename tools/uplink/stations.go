package uplink

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/tapswitch/tapswitch/tools/bench/ways"
	"github.com/tapswitch/tapswitch/tools/tapsink"
)

// makeStations makes pairs of stations that fill a forwarding table with the
// given number of entries, at least 2: half of them guests, spread evenly over
// the taps, and as many outside that each talk to one of them. They come in
// random order, always the same.
func makeStations(entries int, taps []tapsink.Tap) []ways.Station {
	stations := make([]ways.Station, max(1, entries/2))
	for i := range stations {
		stations[i] = ways.Station{Dest: address(0x52, i), Source: address(0x02, i), Ifindex: taps[i%len(taps)].Ifindex}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(stations), func(i, j int) { stations[i], stations[j] = stations[j], stations[i] })
	return stations
}

// address makes a locally administered unicast address out of a number.
func address(first byte, i int) (mac [6]byte) {
	mac[0] = first
	binary.BigEndian.PutUint32(mac[2:], uint32(i)+1)
	return mac
}
